"""Shifted images through Rainbow's convolutions by the kernels for Hopper GPUs, against PyTorch with its roundings."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels
from playvirtual.agents.networks.rainbow import RainbowEncoder
from playvirtual.kernels.crop import crop
from playvirtual.kernels.hopper import shifted_convolution_hopper as shifted
from playvirtual.replay.augmentation import RandomShift
from tests.kernels.hopper.on_cpu import needs_compiler, use_cpu_for_others


def expected_maps(
    images: Tensor, shift: Tensor, source: Tensor, factor: Tensor, weights: list[Tensor], biases: list[Tensor]
) -> Tensor:
    """What PyTorch makes of the same views in float64, rounded to bfloat16 where the kernels round."""
    views = crop(images, shift, images.shape[-1], source).float() * factor[:, None, None, None]
    x = views.bfloat16().double()
    for weight, bias, stride in zip(weights, biases, shifted.STRIDES, strict=True):
        x = F.relu(F.conv2d(x, weight.bfloat16().double(), bias.double(), stride)).bfloat16().double()
    return x


def error(size: int, views: int, device: str = "cpu") -> float:
    """Relative error of the maps of so many views of three images, shifts reaching over all four borders."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (3, 4, size, size), dtype=torch.uint8, generator=generator)
    # Every shift to the side, and up and down; one that reaches over no border.
    side = torch.arange(views) % 9 - 4
    shift = torch.stack([side.flip(0), side], 1)
    source, factor = torch.arange(views) % 3, torch.rand(views, generator=generator) / 255.0
    weights = [torch.randn(filters, generator=generator) * 0.06 for filters in shifted.FILTERS]
    biases = [torch.randn(len(weight), generator=generator) * 0.1 for weight in weights]
    given = [images, shift, source, factor]
    expected = expected_maps(*given, weights, biases)
    there = [[t.to(device) for t in tensors] for tensors in (given, weights, biases)]
    got = shifted.convolved_shifts(*there[0], *there[1:]).cpu().double()
    assert got.shape == expected.shape
    return float((got - expected).norm() / expected.norm())


@needs_compiler
@pytest.mark.parametrize(
    ("size", "views", "processors", "lazy"),
    [(44, 9, 1, True), pytest.param(84, 5, 1, False, marks=pytest.mark.long)],
)
def test_the_kernels_compute_what_pytorch_does(
    monkeypatch: pytest.MonkeyPatch, size: int, views: int, processors: int, lazy: bool
) -> None:
    """On the CPU: in three blocks, the last of which has fewer views than the others where five are spread."""
    use_cpu_for_others(monkeypatch, processors, lazy=lazy)
    assert error(size, views) < 2e-3


def test_the_encoder_of_atari_suits_the_kernels() -> None:
    first = shifted.ShiftedConvolution(84)
    assert first.output == 20
    assert [layer and layer.output for layer in shifted.next_layers(first.output)] == [(9, 9), (7, 7)]
    assert shifted.RESIDENT * (first.shared + 1024) <= 228 * 1024  # an SM keeps a kilobyte of each block for itself


@pytest.mark.parametrize(
    ("device", "images", "filters", "strides"),
    [
        ("cpu", (4, 84, 84), shifted.FILTERS, shifted.STRIDES),
        ("cuda", (1, 84, 84), shifted.FILTERS, shifted.STRIDES),  # one frame
        ("cuda", (4, 84, 80), shifted.FILTERS, shifted.STRIDES),
        ("cuda", (4, 96, 96), shifted.FILTERS, shifted.STRIDES),  # an odd number of outputs along a side
        ("cuda", (4, 84, 84), shifted.FILTERS[:2], shifted.STRIDES[:2]),
        ("cuda", (4, 84, 84), ((32, 4, 5, 5), (64, 32, 5, 5), (64, 64, 3, 3)), (5, 5, 1)),
    ],
)
def test_other_devices_images_and_encoders_are_left_to_the_kernels_before(
    device: str, images: tuple[int, ...], filters: tuple[tuple[int, ...], ...], strides: tuple[int, ...]
) -> None:
    assert not shifted.usable(torch.device(device), images, filters, strides)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA toolkit")
def test_a_toolkit_compiles_them_for_hopper(tmp_path: Path) -> None:
    layers = [layer for layer in shifted.next_layers(20) if layer is not None]
    for i, source in enumerate([shifted.ShiftedConvolution(84).source, *(layer.source for layer in layers)]):
        (tmp_path / f"{i}.cu").write_text(source)
        command = ["nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", f"{i}.cu"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert " 0 bytes spill stores" in result.stderr
        assert "wgmma.mma_async instructions are serialized" not in result.stderr  # products that wait for each other


def _usable() -> bool:
    return kernels.AVAILABLE and shifted.usable(torch.device("cuda"), (4, 84, 84), shifted.FILTERS, shifted.STRIDES)


@pytest.mark.skipif(not _usable(), reason="no Hopper GPU")
@pytest.mark.parametrize("views", [1, 32, 736, 1504])
def test_the_compiled_kernels_compute_what_pytorch_does(views: int) -> None:
    assert error(84, views, "cuda") < 4e-3


@pytest.mark.skipif(not _usable(), reason="no Hopper GPU")
@pytest.mark.parametrize("pad", [4, 0])
def test_an_encoder_makes_the_same_of_views_with_and_without_them(pad: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    encoder = RainbowEncoder((4, 84, 84), (32, 64, 64), (8, 4, 3), (4, 2, 1), 0).cuda()
    augment = RandomShift(pad, 0.05, space_to_depth=4)
    frames = torch.randint(256, (20, 7, 84, 84), dtype=torch.uint8, generator=generator, device="cuda")
    images = frames[:, 1:5]  # each in one piece, with other frames in between
    randoms = augment.draw(50, images.device, generator)
    source = torch.randint(20, (50,), generator=generator, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            assert augment.convolved(images, randoms, encoder.convs, source) is not None
            z = encoder.encode_views(augment, images, randoms, source).float()
        expected = encoder(augment(images, randoms, source)).float().detach()
    assert float((z - expected).norm() / expected.norm()) < 0.02
    own = augment.draw(20, images.device, generator)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():  # a view of each image
        z, expected = encoder.encode_views(augment, images, own).float(), encoder(augment(images, own)).float()
    assert float((z - expected).norm() / expected.norm()) < 0.02


def test_where_a_gradient_is_wanted_or_on_a_cpu_views_are_made_first() -> None:
    augment = RandomShift(4, 0.05)
    encoder = RainbowEncoder((4, 84, 84), (32, 64, 64), (8, 4, 3), (4, 2, 1), 0)
    images = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    randoms = augment.draw(3, images.device)
    with torch.no_grad():
        assert augment.convolved(images, randoms, encoder.convs) is None
        assert torch.equal(encoder.encode_views(augment, images, randoms), encoder(augment(images, randoms)))
