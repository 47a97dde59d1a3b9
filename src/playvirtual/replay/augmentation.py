"""Image augmentation as pure functions of the images and of the random numbers drawn for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from playvirtual.method import kernels
from playvirtual.replay.blocks import blocks

if kernels.AVAILABLE:
    from playvirtual.replay import fused_cut

ImageDraws = tuple[Tensor, Tensor]  # offsets (N, 2), intensity noise (N,)


def window(images: Tensor, top: Tensor, left: Tensor, size: int, source: Tensor | None = None) -> Tensor:
    """(N, C, H, W) -> (N, C, size, size): one window per image; outside of it the border pixel is repeated.

    With `source` (V,) there are V windows, number v cut from images[source[v]].
    """
    height, width = images.shape[-2:]
    span = torch.arange(size, device=images.device)
    rows = (top[:, None] + span).clamp(0, height - 1)  # (N, size)
    columns = (left[:, None] + span).clamp(0, width - 1)
    n = (torch.arange(len(images), device=images.device) if source is None else source)[:, None, None]
    # Channels last in the look-up, so that one index covers a whole stack: (N, size, size, C).
    return images.permute(0, 2, 3, 1)[n, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def augmented(
    images: Tensor, corners: Tensor | None, size: int, source: Tensor | None, factor: Tensor, block: int
) -> Tensor:
    """(N, C, H, W) uint8 -> (V, C, size, size) floats: the windows at `corners` (V, 2), divided by 255, times `factor`.

    Without `corners` the whole pictures; `source` as in `window`. With `block` > 1 the result comes in `blocks`.
    """
    if kernels.in_use() and images.is_cuda:
        number = torch.arange(len(images), device=images.device) if source is None else source
        places = torch.zeros((len(number), 2), dtype=torch.int64, device=images.device) if corners is None else corners
        low = torch.is_autocast_enabled(images.device.type)
        clamp = size == images.shape[-1]  # a shift leaves its image, a crop does not
        return fused_cut.cut(images, places, number, factor / 255.0, size, block, clamp=clamp, low=low)
    if corners is not None:
        images = window(images, corners[:, 0], corners[:, 1], size, source)
    elif source is not None:
        images = images[source]
    floats = images.to(torch.get_default_dtype()) / 255.0 * factor[:, None, None, None]
    return blocks(floats, block) if block > 1 else floats


def intensity(noise: Tensor, scale: float) -> Tensor:
    """The factors 1 + scale · clip(noise, −2, 2) of images with standard normal noise (N,)."""
    return 1.0 + scale * noise.clamp(-2.0, 2.0)


@dataclass(frozen=True)
class Augmentation:
    """Random shift by up to `pad` pixels, then random intensity; turns uint8 frames into floats in about [0, 1]."""

    pad: int
    scale: float
    block: int = 1  # the results come in `blocks` of this size

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> ImageDraws:
        """The random numbers for `count` images: offsets (count, 2) and intensity noise (count,)."""
        offsets = torch.randint(2 * self.pad + 1, (count, 2), generator=generator, device=device)
        return offsets, torch.randn(count, generator=generator, device=device)

    def __call__(self, images: Tensor, draws: ImageDraws, source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> floats; the same shift and intensity for every frame of a stack.

        With `source` (V,) there are V results, number v made of images[source[v]].
        """
        offsets, noise = draws
        corners = offsets - self.pad if self.pad else None
        return augmented(images, corners, images.shape[-1], source, intensity(noise, self.scale), self.block)


@dataclass(frozen=True)
class Crop:
    """Random crops from `image_size` to `size` pixels, then random intensity; uint8 frames become floats."""

    image_size: int
    size: int
    scale: float
    block: int = 1  # the results come in `blocks` of this size

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> ImageDraws:
        """The random numbers for `count` images: offsets (count, 2) and intensity noise (count,)."""
        offsets = torch.randint(self.image_size - self.size + 1, (count, 2), generator=generator, device=device)
        return offsets, torch.randn(count, generator=generator, device=device)

    def __call__(self, images: Tensor, draws: ImageDraws, source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, size, size) floats; the frames of a stack share crop and intensity.

        With `source` (V,) there are V results, number v made of images[source[v]].
        """
        offsets, noise = draws
        return augmented(images, offsets, self.size, source, intensity(noise, self.scale), self.block)

    def crop(self, images: Tensor, offsets: Tensor) -> Tensor:
        """The crops alone, at offsets (N, 2)."""
        ones = torch.ones(len(offsets), dtype=torch.get_default_dtype(), device=images.device)
        return augmented(images, offsets, self.size, None, ones, self.block)

    def centre(self, images: Tensor) -> Tensor:
        """The middle of every image, as for acting."""
        start = (self.image_size - self.size) // 2
        middle = images[..., start : start + self.size, start : start + self.size]
        return middle.to(torch.get_default_dtype()) / 255.0
