"""Crops of uint8 images as bfloat16, regrouped by space-to-depth, by one kernel in CUDA C++ for Hopper GPUs."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from typing import NamedTuple

import torch
from torch import Tensor

from playvirtual.kernels import hopper
from playvirtual.kernels.space_to_depth import UNIT, depth_channels

MOST = 64  # values that a thread can keep


class Sizes(NamedTuple):
    """Channels, height and width of images, size of the crops, pixels along a block, units of 8 channels of a block."""

    c: int
    h: int
    w: int
    size: int
    block: int
    units: int

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return "crop"

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return 256

    @property
    def parts(self) -> int:
        """Thread blocks of one crop."""
        return -(-((self.size // self.block) ** 2) // self.threads)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a thread block."""
        return -(-((self.size // self.block) ** 2) // self.parts) * self.units * 16

    @property
    def source(self) -> str:
        """The kernel in CUDA C++, for these sizes."""
        return hopper.source("crop_hopper.cu", {name.upper(): value for name, value in self._asdict().items()})


def sizes_for(images: tuple[int, ...], size: int, block: int) -> Sizes:
    """The sizes of crops of images (C, H, W) in blocks."""
    C, H, W = images
    return Sizes(C, H, W, size, block, depth_channels(C, block) // UNIT)


@torch.compiler.assume_constant_result
def usable(device: torch.device, images: tuple[int, ...], size: int, block: int) -> bool:
    """Whether the kernel can crop images (C, H, W) there."""
    if block == 1 or block * block * images[0] > MOST:
        return False
    return hopper.supported(device) and hopper.fits(sizes_for(images, size, block), device)


@torch.library.custom_op("playvirtual::hopper_crop", mutates_args=())
def crop_op(images: Tensor, offsets: Tensor, source: Tensor, factor: Tensor, size: int, block: int) -> Tensor:
    """(N, C, H, W) uint8 -> (V, size/block, size/block, channels) bfloat16; no crop may leave its image."""
    sizes = sizes_for(tuple(images.shape[1:]), size, block)
    out = _outputs(images, source, size, block)
    arguments = [images, images.stride(0), offsets, source, factor, out]
    hopper.launch(sizes, images.device, len(source) * sizes.parts, arguments)
    return out


def _outputs(images: Tensor, source: Tensor, size: int, block: int) -> Tensor:
    side, channels = size // block, depth_channels(images.shape[1], block)
    return images.new_empty(len(source), side, side, channels, dtype=torch.bfloat16)


@crop_op.register_fake
def _(images, offsets, source, factor, size, block):
    return _outputs(images, source, size, block)


def crop(images: Tensor, offsets: Tensor, source: Tensor, factor: Tensor, size: int, block: int) -> Tensor:
    """Crop v, at its offset (top, left) in images[source[v]], times its factor: (V, channels, size/block, size/block).

    Offsets and sources are int64, factors float32. Each of the images is contiguous; they may lie apart.
    """
    crops: Tensor = crop_op(images, offsets.contiguous(), source, factor, size, block)
    return crops.permute(0, 3, 1, 2)
