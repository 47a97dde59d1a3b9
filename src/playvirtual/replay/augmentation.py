"""Image augmentation as pure functions of the images and of the random numbers drawn for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Replicate-pads by `pad` and crops back to the old size at offsets (N, 2) in 0 … 2·pad; `pad` means no shift."""
    return window(images, offsets[:, 0] - pad, offsets[:, 1] - pad, images.shape[-1])


def random_crop(images: Tensor, offsets: Tensor, size: int, source: Tensor | None = None) -> Tensor:
    """Crops to size × size at offsets (N, 2) in 0 … H − size; `source` as in `window`."""
    return window(images, offsets[:, 0], offsets[:, 1], size, source)


def intensity(images: Tensor, noise: Tensor, scale: float) -> Tensor:
    """Multiplies every image by 1 + scale · clip(noise, −2, 2); noise (N,) is standard normal."""
    return images * (1.0 + scale * noise.clamp(-2.0, 2.0))[:, None, None, None]


@dataclass(frozen=True)
class Augmentation:
    """Random shift by up to `pad` pixels, then random intensity; turns uint8 frames into floats in about [0, 1]."""

    pad: int
    scale: float

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The random numbers for `count` images: offsets (count, 2) and intensity noise (count,)."""
        offsets = torch.randint(2 * self.pad + 1, (count, 2), generator=generator, device=device)
        return offsets, torch.randn(count, generator=generator, device=device)

    def __call__(self, images: Tensor, draws: tuple[Tensor, Tensor]) -> Tensor:
        """(N, C, H, W) uint8 -> float32; the same shift and intensity for every frame of a stack."""
        offsets, noise = draws
        moved = shift(images, offsets, self.pad) if self.pad else images
        return intensity(moved.to(torch.get_default_dtype()) / 255.0, noise, self.scale)


@dataclass(frozen=True)
class Crop:
    """Random crops from `image_size` to `size` pixels, then random intensity; uint8 frames become floats."""

    image_size: int
    size: int
    scale: float

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The random numbers for `count` images: offsets (count, 2) and intensity noise (count,)."""
        offsets = torch.randint(self.image_size - self.size + 1, (count, 2), generator=generator, device=device)
        return offsets, torch.randn(count, generator=generator, device=device)

    def __call__(self, images: Tensor, draws: tuple[Tensor, Tensor], source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, size, size) floats; the frames of a stack share crop and intensity.

        With `source` (V,) there are V results, number v made of images[source[v]].
        """
        offsets, noise = draws
        return intensity(self.crop(images, offsets, source), noise, self.scale)

    def crop(self, images: Tensor, offsets: Tensor, source: Tensor | None = None) -> Tensor:
        """The crops alone, at offsets (N, 2)."""
        return random_crop(images, offsets, self.size, source).to(torch.get_default_dtype()) / 255.0

    def centre(self, images: Tensor) -> Tensor:
        """The middle of every image, as for acting."""
        start = (self.image_size - self.size) // 2
        middle = images[..., start : start + self.size, start : start + self.size]
        return middle.to(torch.get_default_dtype()) / 255.0
