"""Crops of uint8 images as bfloat16, regrouped by space-to-depth, by one kernel in CUDA C++ for Hopper GPUs."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playvirtual.kernels import hopper
from playvirtual.kernels.cuda_module import CudaError, CudaModule, compiled, has_compiler
from playvirtual.kernels.space_to_depth import UNIT, depth_channels

THREADS = 256
MOST = 64  # values that a thread can keep

Launch = Callable[[int, list[Any]], None]  # blocks, arguments


class Sizes(NamedTuple):
    """Channels, height and width of images, size of the crops, pixels along a block, units of 8 channels of a block."""

    c: int
    h: int
    w: int
    size: int
    block: int
    units: int

    @property
    def parts(self) -> int:
        """Thread blocks of one crop."""
        return -(-((self.size // self.block) ** 2) // THREADS)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a thread block."""
        return -(-((self.size // self.block) ** 2) // self.parts) * self.units * 16

    @property
    def source(self) -> str:
        """The kernel's source."""
        return hopper.source("crop_hopper.cu", {name.upper(): value for name, value in self._asdict().items()})


def sizes_for(images: tuple[int, ...], size: int, block: int) -> Sizes:
    """The sizes of crops of images (N, C, H, W) in blocks."""
    _, C, H, W = images
    return Sizes(C, H, W, size, block, depth_channels(C, block) // UNIT)


@torch.compiler.assume_constant_result
def usable(device: torch.device, images: tuple[int, ...], size: int, block: int) -> bool:
    """Whether the kernel can crop images (N, C, H, W) there."""
    if device.type != "cuda" or block == 1 or block * block * images[1] > MOST:
        return False
    if torch.cuda.get_device_capability(device) != (9, 0) or not has_compiler():
        return False
    return _fits(sizes_for(images, size, block), device.index or 0)


@cache
def _module(sizes: Sizes, _device: int) -> CudaModule:
    return CudaModule(compiled(sizes.source, "sm_90a"))


@cache
def _fits(sizes: Sizes, device: int) -> bool:
    try:
        return _module(sizes, device).resident("crop", THREADS, sizes.shared) > 0
    except CudaError:
        return False


def _launcher(sizes: Sizes, device: torch.device) -> Launch:
    """Launches on the GPU; a test replaces it."""
    module = _module(sizes, device.index or 0)

    def launch(blocks: int, arguments: list[Any]) -> None:
        module.launch("crop", blocks, THREADS, sizes.shared, arguments, cooperative=False)

    return launch


@torch.library.custom_op("playvirtual::hopper_crop", mutates_args=())
def crop_op(images: Tensor, offsets: Tensor, source: Tensor, factor: Tensor, size: int, block: int) -> Tensor:
    """(N, C, H, W) uint8 -> (V, size/block, size/block, channels) bfloat16; no crop may leave its image."""
    sizes = sizes_for(tuple(images.shape), size, block)
    out = _outputs(images, source, size, block)
    _launcher(sizes, images.device)(len(source) * sizes.parts, [images, offsets, source, factor, out])
    return out


def _outputs(images: Tensor, source: Tensor, size: int, block: int) -> Tensor:
    side, channels = size // block, depth_channels(images.shape[1], block)
    return images.new_empty(len(source), side, side, channels, dtype=torch.bfloat16)


@crop_op.register_fake
def _(images, offsets, source, factor, size, block):
    return _outputs(images, source, size, block)


def crop(images: Tensor, offsets: Tensor, source: Tensor, factor: Tensor, size: int, block: int) -> Tensor:
    """Crop v, at its offset (top, left) in images[source[v]], times its factor: (V, channels, size/block, size/block).

    Offsets and sources are int64, factors float32.
    """
    crops: Tensor = crop_op(images.contiguous(), offsets.contiguous(), source, factor, size, block)
    return crops.permute(0, 3, 1, 2)
