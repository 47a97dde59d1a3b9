"""Crops of uint8 images as floats, for augmentation: a Triton kernel on GPUs, plain PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels.space_to_depth import space_to_depth as to_depth

if kernels.AVAILABLE:
    from playvirtual.kernels.hopper import crop_hopper
    from playvirtual.kernels.triton import crop_triton


def random_crop(
    images: Tensor, offsets: Tensor | None, size: int, source: Tensor | None, factor: Tensor, space_to_depth: int
) -> Tensor:
    """(N, C, H, W) uint8 -> (V, C, size, size) floats: the crops at `offsets`, divided by 255, times `factor` (V,).

    `offsets` (V, 2) is the top left corner of each crop, drawn by the caller; without them the images are kept
    whole. A crop that leaves its image, as a shift does, repeats the border. The v-th crop is of images[source[v]]
    or, without `source`, of images[v]. With `space_to_depth` > 1 every square block of pixels of that side length
    becomes one pixel with more channels.
    """
    if kernels.in_use() and images.is_cuda:
        return _random_crop_fused(images, offsets, size, source, factor, space_to_depth)
    if offsets is not None:
        images = crop(images, offsets, size, source)
    elif source is not None:
        images = images[source]
    # In place: fresh memory for each result was a third of the cost of an update with images of 48 × 48 on a CPU.
    floats = images.to(torch.get_default_dtype(), copy=True).div_(255.0).mul_(factor[:, None, None, None])
    return to_depth(floats, space_to_depth) if space_to_depth > 1 else floats


def crop(images: Tensor, offsets: Tensor, size: int, source: Tensor | None = None) -> Tensor:
    """(N, C, H, W) -> (V, C, size, size): the crop of images[source[v]], or images[v], at each of offsets (V, 2)."""
    height, width = images.shape[-2:]
    span = torch.arange(size, device=images.device)
    rows = (offsets[:, :1] + span).clamp(0, height - 1)  # (V, size)
    columns = (offsets[:, 1:] + span).clamp(0, width - 1)
    v = (torch.arange(len(images), device=images.device) if source is None else source)[:, None, None]
    # Channels last in the look-up, so that one index covers a whole stack: (V, size, size, C).
    return images.permute(0, 2, 3, 1)[v, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _random_crop_fused(
    images: Tensor, offsets: Tensor | None, size: int, source: Tensor | None, factor: Tensor, space_to_depth: int
) -> Tensor:
    source = torch.arange(len(images), device=images.device) if source is None else source
    if offsets is None:
        offsets = torch.zeros((len(source), 2), dtype=torch.int64, device=images.device)
    if not images[0].is_contiguous():
        images = images.contiguous()
    low = torch.is_autocast_enabled(images.device.type)
    clamp = size == images.shape[-1]  # a shift leaves its image, a crop does not
    if low and not clamp and crop_hopper.usable(images.device, tuple(images.shape[1:]), size, space_to_depth):
        return crop_hopper.crop(images, offsets, source, factor / 255.0, size, space_to_depth)
    return crop_triton.crop(images, offsets, source, factor / 255.0, size, space_to_depth, clamp=clamp, low=low)
