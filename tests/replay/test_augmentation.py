"""Random shifts, random crops and random intensity."""

import pytest
import torch
from torch import Tensor

from playvirtual.replay import ImageRandoms, RandomCrop, RandomShift
from playvirtual.replay.augmentation import intensity

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shifts_reach_the_last_offset() -> None:
    offsets, _ = RandomShift(pad=4, scale=0.05).draw(3_000, CPU, seeded())
    assert offsets.min() == 0
    assert offsets.max() == 8


def test_a_shift_moves_the_image_and_repeats_its_border() -> None:
    image = torch.arange(5, dtype=torch.uint8).expand(1, 1, 5, 5)  # each row 0 … 4
    shift = RandomShift(pad=2, scale=0.0)

    def first_row(offset: int) -> list[int]:
        out = shift(image, ImageRandoms(torch.tensor([[2, offset]]), torch.zeros(1)))
        return (out[0, 0, 0] * 255).round().int().tolist()

    assert first_row(0) == [0, 0, 0, 1, 2]
    assert first_row(2) == [0, 1, 2, 3, 4]
    assert first_row(4) == [2, 3, 4, 4, 4]


def test_intensity_is_clipped_at_two_standard_deviations() -> None:
    factors = intensity(torch.tensor([0.0, 1.0, 5.0, -5.0]), 0.05)
    torch.testing.assert_close(factors, torch.tensor([1.0, 1.05, 1.1, 0.9]))


def test_the_frames_of_a_stack_share_shift_and_intensity() -> None:
    frames = torch.randint(256, (1, 1, 9, 9), dtype=torch.uint8, generator=seeded()).expand(2, 4, 9, 9)
    augment = RandomShift(pad=4, scale=0.05)
    out = augment(frames, augment.draw(2, CPU, seeded(3)))
    assert out.dtype == torch.float32
    assert torch.equal(out[:, :1].expand_as(out), out)
    assert not torch.equal(out[0], out[1])


def test_crops_reach_the_last_offset() -> None:
    augment = RandomCrop(100, 84, 0.05)
    offsets, _ = augment.draw(4000, CPU, seeded())
    assert set(offsets.flatten().tolist()) == set(range(17))
    image = torch.arange(100, dtype=torch.uint8).expand(1, 1, 100, 100)
    for offset in (0, 16):
        row = augment.crop(image, torch.tensor([[0, offset]]))[0, 0, 0] * 255
        torch.testing.assert_close(row, torch.arange(offset, offset + 84).float())
    torch.testing.assert_close(augment.center(image)[0, 0, 0] * 255, torch.arange(8, 92).float())


def test_results_of_a_source_are_those_of_its_images() -> None:
    images = torch.arange(3 * 36).view(3, 1, 6, 6).to(torch.uint8)
    source = torch.tensor([2, 0, 2, 1])
    for augment in (RandomCrop(6, 4, 0.1), RandomShift(2, 0.1), RandomShift(0, 0.1)):
        randoms = augment.draw(4, CPU, seeded())
        assert torch.equal(augment(images, randoms, source), augment(images[source], randoms))


def test_split_random_numbers_are_consecutive() -> None:
    randoms = RandomCrop(100, 84, 0.05).draw(7, CPU, seeded())
    first, second = randoms.split([2, 5])
    assert (len(first.offsets), len(second.noise)) == (2, 5)
    assert torch.equal(torch.cat([first.offsets, second.offsets]), randoms.offsets)
    assert torch.equal(torch.cat([first.noise, second.noise]), randoms.noise)


@pytest.mark.parametrize("augment", [RandomShift(2, 0.2), RandomCrop(7, 5, 0.2)])
def test_a_view_pixel_by_pixel(augment: RandomShift | RandomCrop) -> None:
    """Each view has the shift and the intensity of its own random numbers; beyond the border the border repeats."""
    images = torch.randint(256, (3, 2, 7, 7), dtype=torch.uint8, generator=seeded())
    offsets, noise = torch.tensor([[0, 2], [1, 0], [2, 1]]), torch.tensor([0.5, -3.0, -1.0])
    factors, corner = (1.1, 0.6, 0.8), 2 if isinstance(augment, RandomShift) else 0
    found = augment(images, ImageRandoms(offsets, noise))
    assert found.shape == ((3, 2, 7, 7) if corner else (3, 2, 5, 5))

    def pixel(n: int, c: int, row: int, column: int) -> float:
        down, right = offsets[n].tolist()
        row, column = min(max(row + down - corner, 0), 6), min(max(column + right - corner, 0), 6)
        return factors[n] * int(images[n, c, row, column]) / 255

    size = found.shape[-1]
    expected = [[[[pixel(n, c, i, j) for j in range(size)] for i in range(size)] for c in range(2)] for n in range(3)]
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("augment", [RandomShift(2, 0.05), RandomCrop(12, 8, 0.05)])
def test_every_image_has_random_numbers_of_its_own(augment: RandomShift | RandomCrop) -> None:
    generator = seeded()
    draws = [augment.draw(1000, CPU, generator) for _ in range(2)]

    def share(equal: Tensor) -> float:
        return float(equal.float().mean())

    for offsets, noise in draws:
        counts = torch.stack([offsets[:, axis].bincount(minlength=5) for axis in (0, 1)])
        assert counts.shape == (2, 5)
        assert bool(((counts - 200).abs() < 60).all())  # each of the five is drawn equally often
        assert share(offsets[:, 0] == offsets[:, 1]) == pytest.approx(0.2, abs=0.06)
        assert share((offsets[1:] == offsets[:-1]).all(1)) == pytest.approx(0.04, abs=0.03)
        assert len(noise.unique()) > 990
        assert float(noise.mean()) == pytest.approx(0.0, abs=0.15)
        assert float(noise.std()) == pytest.approx(1.0, abs=0.1)
    assert share((draws[0].offsets == draws[1].offsets).all(1)) == pytest.approx(0.04, abs=0.03)
    assert not torch.equal(draws[0].noise, draws[1].noise)
