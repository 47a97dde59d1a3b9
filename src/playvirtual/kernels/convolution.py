"""A convolution with its ReLU, by the kernel that suits the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual import kernels
from playvirtual.kernels.space_to_depth import space_to_depth

if kernels.AVAILABLE:
    from playvirtual.kernels.hopper import convolution_hopper, shifted_convolution_hopper
    from playvirtual.kernels.triton import convolution_triton

FEW = 16  # channels; tensor cores take no fewer at a time


def conv_relus(x: Tensor, convs: Iterable[nn.Module]) -> Tensor:
    """`conv_relu` of one convolution after the other, together where there is a kernel for that."""
    layers = list(convs)
    found = [_filters(conv, x.shape[1] if i == 0 else None) for i, conv in enumerate(layers)]
    if kernels.in_use() and x.is_cuda and all(stride == 1 for *_, stride in found):
        images, weights, biases = kernels.low_precision(x), [w for w, _, _ in found], [b for _, b, _ in found]
        sizes = [tuple(weight.shape) for weight in weights]
        if convolution_hopper.usable(x.device, images.dtype, tuple(x.shape[1:]), sizes):
            return convolution_hopper.conv_relus(images, weights, biases)
    for conv in layers:
        x = conv_relu(x, conv)
    return x


def conv_relu(x: Tensor, conv: nn.Module) -> Tensor:
    """relu(conv(x)), (N, C, H, W) -> (N, C′, H′, W′); images may come through `space_to_depth` by the stride."""
    weight, bias, stride = _filters(conv, x.shape[1])
    # One kernel keeps ReLU's input to itself and makes up for what cuDNN loses on few channels.
    channels = max(x.shape[1], weight.shape[0])
    small = len(x) * x.shape[2] * x.shape[3] * channels < 2**31  # the kernel counts by 32 bits
    if kernels.in_use() and x.is_cuda and weight.shape[0] in (16, 32, 64, 128) and small:
        return convolution_triton.conv_relu(kernels.low_precision(x), weight, bias, stride)
    return F.relu(F.conv2d(x, weight, bias, stride))


def convolved_shifts(
    images: Tensor, shift: Tensor | None, source: Tensor | None, factor: Tensor, convs: Iterable[nn.Module]
) -> Tensor | None:
    """Shifted images through one convolution after the other, each with its ReLU: (V, C′, H′, W′).

    The views are those that `random_crop` makes of whole images (N, C, H, W) uint8: images[source[v]], moved by
    shift[v], times factor[v]. Here they never are in memory. None where a gradient is wanted or there is no kernel.
    """
    if not (kernels.in_use() and images.is_cuda) or torch.is_grad_enabled():
        return None
    kind = images.device.type
    low = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    weights, biases, strides = zip(*(_filters(conv, None) for conv in convs), strict=True)
    sizes = [tuple(weight.shape) for weight in weights]
    if not low or not shifted_convolution_hopper.usable(images.device, tuple(images.shape[1:]), sizes, strides):
        return None
    source = torch.arange(len(images), device=images.device) if source is None else source
    if shift is None:
        shift = torch.zeros((len(source), 2), dtype=torch.int64, device=images.device)
    if not images[0].is_contiguous():
        images = images.contiguous()
    return shifted_convolution_hopper.convolved_shifts(images, shift, source, factor / 255.0, weights, biases)


def _filters(conv: nn.Module, channels: int | None) -> tuple[Tensor, Tensor, int]:
    """Weight, bias and stride for images of so many channels: regrouped as they are, if `space_to_depth` made them."""
    assert isinstance(conv, nn.Conv2d)
    weight, bias, stride = conv.weight, conv.bias, conv.stride[0]
    assert bias is not None
    if channels not in (None, conv.in_channels):
        weight, stride = space_to_depth(pad_to_multiple(weight, stride), stride), 1
    return weight, bias, stride


def space_to_depth_size(conv: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> int:
    """The block size of `space_to_depth` in which this first convolution is fastest: its stride or, for images as they
    are, 1."""
    assert isinstance(conv, nn.Conv2d)
    channels, height, width = image_shape
    stride = conv.stride[0]
    fits = height % stride == width % stride == 0 and stride & (stride - 1) == 0  # as the crop kernel needs
    return stride if kernels.in_use() and device.type == "cuda" and channels < FEW and fits else 1


def pad_to_multiple(weight: Tensor, size: int) -> Tensor:
    """Filters (O, C, side, side) with zeros behind, so that `size` divides their side."""
    missing = -weight.shape[2] % size
    return F.pad(weight, (0, missing, 0, missing))
