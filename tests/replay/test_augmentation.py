"""Shifts, crops and intensity, pixel by pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.method import kernels
from playvirtual.replay import Augmentation, intensity, window
from tests.interpreted import interpreted, needs_triton


@given(st.integers(0, 8), st.integers(0, 8))
def test_shift_is_replicate_padding_then_a_crop(dy: int, dx: int) -> None:
    image = torch.arange(3 * 6 * 6, dtype=torch.uint8).view(1, 3, 6, 6)
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode="edge")
    out = window(image, torch.tensor([dy - 4]), torch.tensor([dx - 4]), image.shape[-1])
    np.testing.assert_array_equal(out[0].numpy(), padded[:, dy : dy + 6, dx : dx + 6])


def test_each_image_has_its_own_window() -> None:
    images = torch.arange(2 * 1 * 5 * 5).view(2, 1, 5, 5)
    out = window(images, torch.tensor([0, 2]), torch.tensor([0, 1]), 3)
    assert torch.equal(out[0, 0], images[0, 0, :3, :3])
    assert torch.equal(out[1, 0], images[1, 0, 2:5, 1:4])


def test_the_last_offset_is_drawn_too() -> None:
    offsets, _ = Augmentation(pad=4, scale=0.05).draw(3_000, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert offsets.min() == 0
    assert offsets.max() == 8


def test_intensity_is_clipped_at_two_standard_deviations() -> None:
    factors = intensity(torch.tensor([0.0, 1.0, 5.0, -5.0]), 0.05)
    torch.testing.assert_close(factors, torch.tensor([1.0, 1.05, 1.1, 0.9]))


def test_a_stack_moves_as_one() -> None:
    frames = torch.randint(256, (1, 1, 9, 9), dtype=torch.uint8).expand(2, 4, 9, 9)
    augment = Augmentation(pad=4, scale=0.05)
    out = augment(frames, augment.draw(2, torch.device("cpu"), torch.Generator().manual_seed(3)))
    assert out.dtype == torch.float32
    assert torch.equal(out[:, :1].expand_as(out), out)
    assert not torch.equal(out[0], out[1])


def cut_errors(device: str) -> list[float]:
    """The kernel that cuts windows into blocks against PyTorch: shifts over the border, crops, a source for each."""
    from playvirtual.replay import fused_cut
    from playvirtual.replay.augmentation import augmented

    generator = torch.Generator().manual_seed(0)
    errors = []
    for C, height, size, block in [(4, 12, 12, 4), (9, 14, 10, 2), (1, 9, 9, 1), (3, 10, 8, 2)]:
        images = torch.randint(256, (3, C, height, height), dtype=torch.uint8, generator=generator)
        shifted = size == height
        low, high = (-3, 4) if shifted else (0, height - size + 1)
        corners = torch.randint(low, high, (7, 2), generator=generator)
        source, factor = torch.randint(3, (7,), generator=generator), torch.rand(7, generator=generator)
        expected = augmented(images, corners, size, source, factor, block)
        on_device = [t.to(device) for t in (images, corners, source, factor / 255.0)]
        got = fused_cut.cut(*on_device, size, block, clamp=shifted, low=False).cpu()
        assert got.shape == expected.shape
        errors.append(float((got - expected).abs().max()))
    return errors


@needs_triton
def test_the_interpreted_kernel_cuts_the_same_windows() -> None:
    assert interpreted("tests.replay.test_augmentation", "max(cut_errors('cpu'))") < 1e-6


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_the_compiled_kernel_cuts_the_same_windows() -> None:
    assert max(cut_errors("cuda")) < 1e-6
