"""Images regrouped so that every block of pixels is one pixel with more channels."""

from __future__ import annotations

from torch import Tensor


def blocks(x: Tensor, size: int) -> Tensor:
    """(N, C, H, W) -> (N, size²·C, H/size, W/size), channels last.

    A convolution with stride `size` is one with stride 1 over blocks, its filter regrouped alike; where images have
    few channels that keeps a GPU's matrix units busy.
    """
    cut = x.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (N, C, H/size, size, W/size, size)
    grouped: Tensor = cut.permute(0, 2, 4, 3, 5, 1).flatten(3)  # (N, H/size, W/size, size²·C)
    return grouped.permute(0, 3, 1, 2)
