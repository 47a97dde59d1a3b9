"""A convolution with its ReLU, by the kernel that suits the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.errors import InputError
from playvirtual.method import kernels
from playvirtual.replay.blocks import blocks

if kernels.AVAILABLE:
    from playvirtual.agents import fused_convolution

FEW = 16  # channels; a matrix unit takes no fewer at a time


def conv_relu(x: Tensor, conv: nn.Module) -> Tensor:
    """relu(conv(x)), (N, C, H, W) -> (N, C′, H′, W′); images may come in `blocks` as large as the stride."""
    assert isinstance(conv, nn.Conv2d)
    weight, bias, stride = conv.weight, conv.bias, conv.stride[0]
    assert bias is not None
    if x.shape[1] != conv.in_channels:
        weight, stride = blocks(_whole(weight, stride), stride), 1
    # One kernel keeps ReLU's input to itself and makes up for what cuDNN loses on few channels.
    channels = max(x.shape[1], weight.shape[0])
    small = len(x) * x.shape[2] * x.shape[3] * channels < 2**31  # the kernel counts by 32 bits
    if kernels.in_use() and x.is_cuda and weight.shape[0] in (16, 32, 64, 128) and small:
        return fused_convolution.conv_relu(kernels.low_precision(x), weight, bias, stride)
    return F.relu(F.conv2d(x, weight, bias, stride))


def map_sides(sides: tuple[int, int], filters: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Height and width of what convolutions make of a picture; raises where one of them does not fit."""
    height, width = sides
    for size, stride in zip(filters, strides, strict=True):
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
    if height < 1 or width < 1:
        raise InputError(
            f"filters: {tuple(filters)} with strides {tuple(strides)} do not fit into a picture of {sides[0]} × "
            f"{sides[1]}; allowed: smaller filters or strides, or a larger image_size or crop_size"
        )
    return height, width


def block_side(conv: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> int:
    """The size of blocks in which this first convolution is fastest: its stride or, for images as they are, 1."""
    assert isinstance(conv, nn.Conv2d)
    channels, height, width = image_shape
    stride = conv.stride[0]
    fits = height % stride == width % stride == 0 and stride & (stride - 1) == 0  # as the kernel that cuts them wants
    return stride if kernels.in_use() and device.type == "cuda" and channels < FEW and fits else 1


def _whole(weight: Tensor, size: int) -> Tensor:
    """Filters (O, C, side, side) with zeros behind, so that `size` divides their side."""
    missing = -weight.shape[2] % size
    return F.pad(weight, (0, missing, 0, missing))
