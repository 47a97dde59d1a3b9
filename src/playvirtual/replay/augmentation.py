"""Image augmentation as pure functions of uint8 images and of the random numbers drawn for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.kernels.convolution import convolved_shifts
from playvirtual.kernels.crop import crop, random_crop


class ImageRandoms(NamedTuple):
    """The random numbers that augment N images."""

    offsets: Tensor  # (N, 2) int64: down and to the right, from 0 on
    noise: Tensor  # (N,) standard normal, for the intensity

    def split(self, sizes: Sequence[int]) -> list[ImageRandoms]:
        """The random numbers of consecutive groups of images of the given sizes."""
        sizes = list(sizes)
        return [ImageRandoms(*parts) for parts in zip(self.offsets.split(sizes), self.noise.split(sizes), strict=True)]


def intensity(noise: Tensor, scale: float) -> Tensor:
    """The factors 1 + scale · clip(noise, −2, 2) of images with standard normal noise (N,)."""
    return 1.0 + scale * noise.clamp(-2.0, 2.0)


@dataclass(frozen=True)
class RandomShift:
    """Random shift by up to `pad` pixels, then random intensity; turns uint8 images into floats in about [0, 1].

    Pixels that a shift moves in from outside repeat the border.
    """

    pad: int
    scale: float
    space_to_depth: int = 1  # size of the pixel blocks that become channels; see kernels/space_to_depth.py

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> ImageRandoms:
        """The random numbers for `count` images."""
        offsets = torch.randint(2 * self.pad + 1, (count, 2), generator=generator, device=device)
        return ImageRandoms(offsets, torch.randn(count, generator=generator, device=device))

    def __call__(self, images: Tensor, randoms: ImageRandoms, source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, H, W) floats; the frames of a stack share shift and intensity.

        With `source` (V,) there are V results, of which the v-th is made of images[source[v]].
        """
        shift, factor = self._shift_and_factor(randoms)
        return random_crop(images, shift, images.shape[-1], source, factor, self.space_to_depth)

    def convolved(
        self, images: Tensor, randoms: ImageRandoms, convs: Iterable[nn.Module], source: Tensor | None = None
    ) -> Tensor | None:
        """(N, C, H, W) uint8 -> (V, C′, H′, W′): the views through convolutions, each with its ReLU.

        None where a gradient is wanted or no kernel does it at once.
        """
        shift, factor = self._shift_and_factor(randoms)
        return convolved_shifts(images, shift, source, factor, convs)

    def _shift_and_factor(self, randoms: ImageRandoms) -> tuple[Tensor | None, Tensor]:
        """(V, 2): pixels down and to the right where a view begins, None for no shift at all; (V,): intensities."""
        offsets, noise = randoms
        return offsets - self.pad if self.pad else None, intensity(noise, self.scale)

    def crop(self, images: Tensor, offsets: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> floats of the same shape: the shifts by offsets (N, 2), intensity unchanged."""
        unchanged = torch.ones(len(images), dtype=torch.get_default_dtype(), device=images.device)
        return random_crop(images, offsets - self.pad, images.shape[-1], None, unchanged, self.space_to_depth)

    def center(self, images: Tensor) -> Tensor:
        """(…, C, H, W) uint8 -> floats of the same shape: the images where they are, which an agent acts on."""
        return images.to(torch.get_default_dtype()) / 255.0


class CropAndShiftRandoms(NamedTuple):
    """The random numbers of N views by `CropAndShift`."""

    crops: Tensor  # (N, 2) int64, down and to the right: where the crop begins
    shifts: Tensor  # (N, 2) int64: where in the padded crop the view begins


@dataclass(frozen=True)
class CropAndShift:
    """A random crop that is `pad` pixels smaller, padded by `pad` on every side, and a random crop of the old size.

    Padding repeats the border; turns uint8 images into floats in [0, 1].
    """

    pad: int
    space_to_depth: int = 1  # size of the pixel blocks that become channels; see kernels/space_to_depth.py

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> CropAndShiftRandoms:
        """The random numbers for `count` images."""
        offsets = torch.randint(self.pad + 1, (2, count, 2), generator=generator, device=device)
        return CropAndShiftRandoms(offsets[0], offsets[1])

    def __call__(self, images: Tensor, randoms: CropAndShiftRandoms) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, H, W) floats; the frames of a stack share crop and shift."""
        size = images.shape[-1]
        span = torch.arange(size, device=images.device)
        # In the image a pixel of the view stands where it stands in the crop, or at the crop's border, plus the crop's.
        within = (randoms.shifts[:, :, None] - self.pad + span).clamp(0, size - self.pad - 1)  # (N, 2, size)
        rows, columns = (randoms.crops[:, :, None] + within).unbind(1)
        n = torch.arange(len(images), device=images.device)[:, None, None]
        # Channels last in the look-up, so that one index covers a whole stack: (N, size, size, C).
        views = images.permute(0, 2, 3, 1)[n, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
        unchanged = torch.ones(len(images), dtype=torch.get_default_dtype(), device=images.device)
        return random_crop(views, None, size, None, unchanged, self.space_to_depth)


@dataclass(frozen=True)
class RandomCrop:
    """Random crops from `image_size` to `size` pixels, then random intensity; turns uint8 images into floats."""

    image_size: int
    size: int
    scale: float
    space_to_depth: int = 1  # size of the pixel blocks that become channels; see kernels/space_to_depth.py

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> ImageRandoms:
        """The random numbers for `count` images."""
        offsets = torch.randint(self.image_size - self.size + 1, (count, 2), generator=generator, device=device)
        return ImageRandoms(offsets, torch.randn(count, generator=generator, device=device))

    def __call__(self, images: Tensor, randoms: ImageRandoms, source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, size, size) floats; the frames of a stack share crop and intensity.

        With `source` (V,) there are V results, of which the v-th is made of images[source[v]].
        """
        offsets, noise = randoms
        return random_crop(images, offsets, self.size, source, intensity(noise, self.scale), self.space_to_depth)

    def crop(self, images: Tensor, offsets: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, size, size) floats: the crops at offsets (N, 2), intensity unchanged."""
        ones = torch.ones(len(offsets), dtype=torch.get_default_dtype(), device=images.device)
        return random_crop(images, offsets, self.size, None, ones, self.space_to_depth)

    def crop_pixels(self, images: Tensor, offsets: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, size, size) uint8: the crops at offsets (N, 2)."""
        return crop(images, offsets, self.size)

    def center(self, images: Tensor) -> Tensor:
        """(…, C, H, W) uint8 -> (…, C, size, size) floats: the center crops, which an agent acts on."""
        start = (self.image_size - self.size) // 2
        middle = images[..., start : start + self.size, start : start + self.size]
        return middle.to(torch.get_default_dtype()) / 255.0
