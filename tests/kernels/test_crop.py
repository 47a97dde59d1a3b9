"""Crops pixel by pixel, and the kernels against PyTorch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playvirtual import kernels
from playvirtual.kernels.crop import crop, random_crop
from playvirtual.kernels.hopper import crop_hopper
from playvirtual.kernels.space_to_depth import space_to_depth
from tests.interpreted import interpreted, needs_triton
from tests.kernels.errors import worst
from tests.kernels.hopper.on_cpu import needs_compiler, use_cpu_for_others


@given(st.integers(0, 8), st.integers(0, 8))
def test_a_crop_over_the_border_is_replicate_padding_then_a_crop(dy: int, dx: int) -> None:
    image = torch.arange(3 * 6 * 6, dtype=torch.uint8).view(1, 3, 6, 6)
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode="edge")
    out = crop(image, torch.tensor([[dy - 4, dx - 4]]), image.shape[-1])
    np.testing.assert_array_equal(out[0].numpy(), padded[:, dy : dy + 6, dx : dx + 6])


def test_each_image_has_its_own_offset() -> None:
    images = torch.arange(2 * 1 * 5 * 5).view(2, 1, 5, 5)
    out = crop(images, torch.tensor([[0, 0], [2, 1]]), 3)
    assert torch.equal(out[0, 0], images[0, 0, :3, :3])
    assert torch.equal(out[1, 0], images[1, 0, 2:5, 1:4])


def crop_errors(device: str) -> list[float]:
    """The kernel's crops against PyTorch's: over the border, within the image, a source for each."""
    from playvirtual.kernels.triton import crop_triton

    generator = torch.Generator().manual_seed(0)
    errors = []
    for C, height, size, block in [
        (4, 12, 12, 4),
        (9, 14, 10, 2),
        (1, 9, 9, 1),
        (3, 10, 8, 2),
        (9, 12, 12, 2),
        (4, 11, 11, 1),
    ]:
        pairs = torch.randint(256, (3, 2, C, height, height), dtype=torch.uint8, generator=generator)
        images = pairs[:, 1]  # each in one piece, with another one in between
        shifted = size == height
        low, high = (-3, 4) if shifted else (0, height - size + 1)
        offsets = torch.randint(low, high, (7, 2), generator=generator)
        source, factor = torch.randint(3, (7,), generator=generator), torch.rand(7, generator=generator)
        expected = random_crop(images, offsets, size, source, factor, block)
        on_device = [pairs.to(device)[:, 1], *(t.to(device) for t in (offsets, source, factor / 255.0))]
        got = crop_triton.crop(*on_device, size, block, clamp=shifted, low=False).cpu()
        assert got.shape == expected.shape
        errors.append(float((got - expected).abs().max()))
    return errors


@pytest.mark.slow
@needs_triton
def test_the_interpreted_kernel_makes_the_same_crops() -> None:
    assert interpreted("tests.kernels.test_crop", "worst(crop_errors('cpu'))") < 1e-6


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_the_compiled_kernel_makes_the_same_crops() -> None:
    assert worst(crop_errors("cuda")) < 1e-6


def hopper_crops_agree(device: str) -> bool:
    """Whether the kernel for Hopper makes PyTorch's crops, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    for C, height, size, block in [(9, 100, 84, 2), (3, 10, 8, 2), (4, 30, 20, 4)]:
        pairs = torch.randint(256, (2, 2, C, height, height), dtype=torch.uint8, generator=generator)
        images = pairs[:, 1]  # each in one piece, with another one in between
        offsets = torch.randint(height - size + 1, (3, 2), generator=generator)
        source, factor = torch.randint(2, (3,), generator=generator), torch.rand(3, generator=generator) / 255.0
        expected = space_to_depth(crop(images, offsets, size, source).float() * factor[:, None, None, None], block)
        on_device = [pairs.to(device)[:, 1], *(t.to(device) for t in (offsets, source, factor))]
        got = crop_hopper.crop(*on_device, size, block)
        if not torch.equal(got.cpu(), expected.bfloat16()):
            return False
    return True


@needs_compiler
def test_the_kernel_for_hopper_makes_the_same_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_for_others(monkeypatch, 1)
    assert hopper_crops_agree("cpu")


@pytest.mark.skipif(
    not (kernels.AVAILABLE and crop_hopper.usable(torch.device("cuda"), (9, 100, 100), 84, 2)),
    reason="no Hopper GPU",
)
def test_the_kernel_for_hopper_makes_the_same_crops_there() -> None:
    assert hopper_crops_agree("cuda")


def test_other_devices_and_whole_pixels_are_left_to_triton() -> None:
    assert not crop_hopper.usable(torch.device("cpu"), (9, 100, 100), 84, 2)
    assert not crop_hopper.usable(torch.device("cuda"), (9, 100, 100), 84, 1)


def test_the_images_are_not_changed() -> None:
    images = torch.full((2, 1, 4, 4), 255.0)  # floats, which need no conversion
    assert torch.equal(
        random_crop(images, None, 4, None, torch.tensor([1.0, 0.5]), 1)[:, 0, 0, 0], torch.tensor([1, 0.5])
    )
    assert torch.equal(images, torch.full((2, 1, 4, 4), 255.0))
