"""Random shifts of images and the convolutions of Rainbow's encoder on them without gradient, for Hopper GPUs.

One kernel (shifted_convolution_hopper.cu) shifts stacks of four 8-bit frames and convolves them, so that the shifted
images, 28,224 numbers each, never leave the chip. It writes what the next two convolutions take by the kernel of
`convolution_hopper`, as blocks of 2×2 pixels.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from playvirtual.kernels import hopper
from playvirtual.kernels.hopper.convolution_hopper import OUTPUTS, arranged, conv_relu_op, layer_for
from playvirtual.kernels.space_to_depth import space_to_depth

FRAMES, BLOCK, CHANNELS = 4, 4, 32  # frames of a stack, pixels along a block, outputs
FILTERS = ((CHANNELS, FRAMES, 8, 8), (OUTPUTS, CHANNELS, 4, 4), (OUTPUTS, OUTPUTS, 3, 3))
STRIDES = (4, 2, 1)
RESIDENT = 3  # blocks that share an SM


class ShiftedConvolution(NamedTuple):
    """The first convolution on square images of so many pixels along a side."""

    size: int

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return "shifted_convolution"

    @property
    def threads(self) -> int:
        """Threads of a block: two warpgroups."""
        return 256

    @property
    def output(self) -> int:
        """Height and width of the outputs."""
        return self.size // BLOCK - 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: the filter, and the image up to the last slot that a product reads."""
        side = self.size // BLOCK
        plane = (side**2 + 2) // 8 * 8 + 5
        tiles = ((self.output - 1) * side + self.output + 63) // 64
        return 16 * (4 * 8 * CHANNELS + 7 * plane + max(plane, 64 * tiles + side + 1))

    @property
    def source(self) -> str:
        """The kernel in CUDA C++, for these sizes."""
        return hopper.source("shifted_convolution_hopper.cu", {"SIZE": self.size}, CHANNELS)


@torch.compiler.assume_constant_result
def usable(
    device: torch.device, images: tuple[int, ...], filters: Sequence[tuple[int, ...]], strides: Sequence[int]
) -> bool:
    """Whether the kernels take images (C, H, W) through convolutions with these filters (O, I, side, side)."""
    frames, height, width = images
    suits = tuple(filters) == FILTERS and tuple(strides) == STRIDES and frames == FRAMES and height == width
    if not suits or height % (2 * BLOCK) != BLOCK or height < 3 * BLOCK or not hopper.supported(device):
        return False
    first = ShiftedConvolution(height)
    layers = next_layers(first.output)
    return hopper.fits(first, device) and all(layer is not None and hopper.fits(layer, device) for layer in layers)


def next_layers(size: int):  # -> list[Layer | None]
    """The layers after the first one, whose outputs have `size` pixels along a side."""
    side = size // 2
    return [layer_for(4 * CHANNELS, 2, side, side, 0), layer_for(OUTPUTS, 3, side - 1, side - 1, 0)]


@torch.library.custom_op("playvirtual::shifted_convolution", mutates_args=())
def shifted_convolution_op(
    images: Tensor, shift: Tensor, source: Tensor, factor: Tensor, filters: Tensor, bias: Tensor
) -> Tensor:
    """relu(views * filters + bias) in blocks of 2×2 positions: (V, side, side, 4·32) bfloat16, side = (H/4 − 1)/2.

    View v is images[source[v]], (N, 4, H, H) uint8, from `shift[v]` (top, left) on, with the border repeated, times
    factor[v]; filters are `arranged` after `space_to_depth`.
    """
    kernel = ShiftedConvolution(images.shape[-1])
    y = _outputs(images, source)
    blocks = min(len(source), RESIDENT * hopper.processors(images.device))
    arguments = [images, images.stride(0), shift, source, factor, filters, bias, y, len(source)]
    hopper.launch(kernel, images.device, blocks, arguments)
    return y


def _outputs(images: Tensor, source: Tensor) -> Tensor:
    side = ShiftedConvolution(images.shape[-1]).output // 2
    return images.new_empty(len(source), side, side, 4 * CHANNELS, dtype=torch.bfloat16)


@shifted_convolution_op.register_fake
def _(images, shift, source, factor, filters, bias):
    return _outputs(images, source)


def convolved_shifts(
    images: Tensor, shift: Tensor, source: Tensor, factor: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """Views of images through the convolutions with ReLU: (V, 64, H′, W′) bfloat16, channels last; without gradient.

    View v is images[source[v]], of (N, 4, H, H) uint8, moved by shift[v] (V, 2) int64, times factor[v].
    """
    first, second, third = (weight.detach().bfloat16() for weight in weights)
    b = [bias.detach().float() for bias in biases]
    filters = arranged(space_to_depth(first, BLOCK))
    y = shifted_convolution_op(images, shift.contiguous(), source, factor, filters, b[0])
    y = conv_relu_op(y, arranged(space_to_depth(second, 2)), b[1])
    y = conv_relu_op(y, arranged(third), b[2])
    maps: Tensor = y.permute(0, 3, 1, 2)
    return maps
