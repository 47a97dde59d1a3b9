"""Space to depth: images regrouped so that every block of pixels is one pixel with more channels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

UNIT = 8  # GPUs read so many half-precision numbers at a time


def depth_channels(channels: int, size: int) -> int:
    """How many channels a block has: size²·C, rounded up to a multiple of `UNIT`; for single pixels it is C."""
    return channels if size == 1 else -(-channels * size * size // UNIT) * UNIT


def space_to_depth(x: Tensor, size: int) -> Tensor:
    """(N, C, H, W) -> (N, `depth_channels`, H/size, W/size), channels last, padded with zeros.

    A convolution with stride `size` equals one with stride 1 over blocks, with its filter regrouped alike; where images
    have few channels, that keeps a GPU's tensor cores busy.
    """
    cut = x.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (N, C, H/size, size, W/size, size)
    grouped: Tensor = cut.permute(0, 2, 4, 3, 5, 1).flatten(3)  # (N, H/size, W/size, size²·C)
    spare = depth_channels(x.shape[1], size) - grouped.shape[3]
    return F.pad(grouped, (0, spare)).permute(0, 3, 1, 2)


def depth_to_space(x: Tensor, size: int, channels: int) -> Tensor:
    """(N, `depth_channels`, H/size, W/size) -> (N, C, H, W), channels last: what `space_to_depth` has made, undone."""
    blocks = x.permute(0, 2, 3, 1)[..., : channels * size * size].unflatten(3, (size, size, channels))
    images: Tensor = blocks.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)  # (N, H, W, C)
    return images.permute(0, 3, 1, 2)
