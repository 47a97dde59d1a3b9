"""The networks of the agents, and the geometry of their convolutional encoders."""

from __future__ import annotations

from collections.abc import Sequence

from playvirtual.errors import InputError


def output_size(image_size: tuple[int, int], kernel_sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Height and width of what a stack of convolutions makes of an image; an InputError where one does not fit."""
    height, width = image_size
    for size, stride in zip(kernel_sizes, strides, strict=True):
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
    if height < 1 or width < 1:
        raise InputError(
            f"kernel_sizes: {tuple(kernel_sizes)} with strides {tuple(strides)} do not fit into an image of "
            f"{image_size[0]} × {image_size[1]}; allowed: smaller ones, a larger image_size or crop_size, or the size "
            "small, which fits them to the image (not for toys and MinAtar)"
        )
    return height, width
