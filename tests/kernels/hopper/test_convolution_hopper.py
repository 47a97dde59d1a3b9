"""The convolutions for Hopper GPUs against PyTorch with the same roundings: every value and every gradient."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels.convolution import conv_relus
from playvirtual.kernels.hopper import convolution_hopper
from playvirtual.kernels.space_to_depth import space_to_depth
from tests.kernels.errors import worst
from tests.kernels.hopper.on_cpu import needs_compiler, use_cpu_for_others

FILTERS = [(64, 40, 2, 2), (64, 64, 3, 3)]
ENCODER = [(64, 40, 2, 2), (64, 64, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3)]


def relu_backward(gradient: Tensor, y: Tensor) -> list[Tensor]:
    """What the Triton kernel does."""
    g = gradient.where(y > 0, 0)
    return [g, g.flatten(0, 2).float().sum(0)]


def errors(shape: tuple[int, ...], filters: list[tuple[int, ...]], device: str = "cpu") -> dict[str, float]:
    """Relative errors of the result and of all gradients against float64, rounded where the kernels round."""
    torch.manual_seed(0)
    x = torch.rand(shape).bfloat16()
    weights = [(torch.randn(size) * 0.06).bfloat16() for size in filters]
    biases = [torch.randn(size[0]) * 0.2 for size in filters]
    found = []
    for exact in (True, False):
        dtype = torch.float64 if exact else torch.float32
        w, b = ([t.to(device, dtype).requires_grad_() for t in tensors] for tensors in (weights, biases))
        images = x.to(device, dtype if exact else torch.bfloat16).requires_grad_()
        if exact:
            y = images
            for weight, bias in zip(w, b, strict=True):
                y = F.relu(F.conv2d(y, weight, bias))
                y = y + (y.detach().bfloat16() - y.detach())  # the gradient passes a rounding
        else:
            y = convolution_hopper.conv_relus(images, w, b)
            with torch.no_grad():
                assert torch.equal(convolution_hopper.conv_relus(images, w, b), y)
        upstream = torch.linspace(-1, 1, y.numel(), device=device).view_as(y).bfloat16()
        y.backward(upstream.to(y.dtype))
        names = ["y", "x", *(f"{kind}{i}" for kind in ("w", "b") for i in range(len(w)))]
        values = [y.detach(), images.grad, *(p.grad for p in (*w, *b))]
        found.append(dict(zip(names, values, strict=True)))
    expected, got = found
    return {name: float((got[name].double() - v).norm() / v.norm()) for name, v in expected.items() if v is not None}


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "processors", "lazy"),
    [pytest.param((3, 40, 18, 19), 1, False, marks=pytest.mark.long), ((2, 40, 18, 19), 2, True)],
)
def test_the_kernel_computes_what_pytorch_does(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], processors: int, lazy: bool
) -> None:
    """On the CPU, in one block or two; products read shared memory when begun or when waited for."""
    use_cpu_for_others(monkeypatch, processors, lazy=lazy)
    fake = SimpleNamespace(relu_backward_op=relu_backward)
    monkeypatch.setattr(convolution_hopper, "convolution_triton", fake, raising=False)
    found = errors(shape, FILTERS)
    assert found["y"] < 2e-3, found
    assert worst(found.values()) < 0.01, found


def test_gradients_of_weights_are_in_the_parameters_order() -> None:
    """Autograd copies a parameter's gradient whose strides are others, in a launch of its own."""
    torch.manual_seed(0)
    x, g = (torch.randn(2, *size, 64, dtype=torch.float64) for size in ((7, 6), (5, 4)))
    weight = torch.randn(64, 64, 3, 3, dtype=torch.float64).to(memory_format=torch.channels_last)
    found = convolution_hopper._weights_backward(g, x, weight)
    assert found.stride() == torch.nn.Conv2d(64, 64, 3).weight.stride()
    images, outputs = (t.permute(0, 3, 1, 2) for t in (x, g))
    torch.testing.assert_close(found, torch.nn.grad.conv2d_weight(images, weight.shape, outputs))


@pytest.mark.parametrize("batch", [128, 512, 2048])
def test_the_encoder_of_dmcontrol_suits_the_kernel(batch: int) -> None:
    layers = convolution_hopper.layers_for((40, 42, 42), ENCODER)
    assert [layer and layer.output for layer in layers] == [(41, 41), (39, 39), (37, 37), (35, 35)]
    for layer in layers:
        assert layer is not None
        back = convolution_hopper.layer_for(64, layer.side, *layer.output, layer.side - 1)
        assert back is not None
        assert back.output == (layer.height, layer.width)


@pytest.mark.parametrize(
    ("shape", "filters"),
    [
        ((9, 84, 84), [(64, 9, 3, 3)]),  # images that are not in blocks
        ((40, 42, 42), [(64, 40, 3, 3)]),  # five units of channels and an odd side
        ((40, 42, 42), [(32, 40, 2, 2)]),
        ((64, 300, 300), [(64, 64, 3, 3)]),  # too wide for shared memory
    ],
)
def test_other_sizes_have_no_layer(shape: tuple[int, ...], filters: list[tuple[int, ...]]) -> None:
    assert convolution_hopper.layers_for(shape, filters) == [None]


def test_other_devices_and_precisions_are_left_to_the_kernels_before() -> None:
    shape = (40, 42, 42)
    assert not convolution_hopper.usable(torch.device("cpu"), torch.bfloat16, shape, ENCODER)
    assert not convolution_hopper.usable(torch.device("cuda"), torch.float32, shape, ENCODER)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA toolkit")
@pytest.mark.parametrize("sizes", [(40, 2, 42, 42, 0), (64, 3, 41, 41, 0), (64, 3, 39, 39, 2)])
def test_a_toolkit_compiles_it_for_hopper(tmp_path: Path, sizes: tuple[int, int, int, int, int]) -> None:
    layer = convolution_hopper.layer_for(*sizes)
    assert layer is not None
    (tmp_path / "convolution.cu").write_text(layer.source)
    command = ["nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "convolution.cu"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert " 0 bytes spill stores" in result.stderr
    assert "wgmma.mma_async instructions are serialized" not in result.stderr  # products that wait for each other


def _usable() -> bool:
    device = torch.device("cuda")
    return kernels.AVAILABLE and convolution_hopper.usable(device, torch.bfloat16, (40, 42, 42), ENCODER)


@pytest.mark.skipif(not _usable(), reason="no Hopper GPU")
@pytest.mark.parametrize("batch", [1, 130, 512])
def test_the_compiled_kernel_computes_what_pytorch_does(batch: int) -> None:
    found = errors((batch, 40, 42, 42), ENCODER, "cuda")
    assert found["y"] < 4e-3, found
    assert worst(found.values()) < 0.02, found


@pytest.mark.skipif(not _usable(), reason="no Hopper GPU")
def test_the_kernels_before_agree_when_they_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    convs = [torch.nn.Conv2d(9, 64, 3, 2), *(torch.nn.Conv2d(64, 64, 3) for _ in range(3))]
    layers = torch.nn.ModuleList(convs).cuda()
    images = space_to_depth(torch.rand(20, 9, 84, 84, device="cuda"), 2)
    found = []
    for forced in (False, True):
        if forced:
            monkeypatch.setattr(convolution_hopper, "usable", lambda *_: False)
        layers.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            y = conv_relus(images, layers)
        y.float().square().mean().backward()
        found.append([y.detach().float(), *(p.grad.clone() for p in layers.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.02
