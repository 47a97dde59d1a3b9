"""Shifts, crops and intensity, pixel by pixel."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.replay import Augmentation, intensity, random_crop, shift


@given(st.integers(0, 8), st.integers(0, 8))
def test_shift_is_replicate_padding_then_a_crop(dy: int, dx: int) -> None:
    image = torch.arange(3 * 6 * 6, dtype=torch.uint8).view(1, 3, 6, 6)
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode="edge")
    out = shift(image, torch.tensor([[dy, dx]]), pad=4)
    np.testing.assert_array_equal(out[0].numpy(), padded[:, dy : dy + 6, dx : dx + 6])


def test_each_image_has_its_own_window() -> None:
    images = torch.arange(2 * 1 * 5 * 5).view(2, 1, 5, 5)
    out = random_crop(images, torch.tensor([[0, 0], [2, 1]]), 3)
    assert torch.equal(out[0, 0], images[0, 0, :3, :3])
    assert torch.equal(out[1, 0], images[1, 0, 2:5, 1:4])


def test_the_last_offset_is_drawn_too() -> None:
    offsets, _ = Augmentation(pad=4, scale=0.05).draw(3_000, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert offsets.min() == 0
    assert offsets.max() == 8


def test_intensity_is_clipped_at_two_standard_deviations() -> None:
    ones = torch.ones(4, 1, 1, 1)
    out = intensity(ones, torch.tensor([0.0, 1.0, 5.0, -5.0]), 0.05)
    torch.testing.assert_close(out[:, 0, 0, 0], torch.tensor([1.0, 1.05, 1.1, 0.9]))


def test_a_stack_moves_as_one() -> None:
    frames = torch.randint(256, (1, 1, 9, 9), dtype=torch.uint8).expand(2, 4, 9, 9)
    augment = Augmentation(pad=4, scale=0.05)
    out = augment(frames, augment.draw(2, torch.device("cpu"), torch.Generator().manual_seed(3)))
    assert out.dtype == torch.float32
    assert torch.equal(out[:, :1].expand_as(out), out)
    assert not torch.equal(out[0], out[1])
