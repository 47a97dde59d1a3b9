"""The kernels for Hopper GPUs against PyTorch with the same roundings: every value and every gradient."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels.rollout import rescale
from playvirtual.method import ConvDynamics, DiscreteActions
from playvirtual.method.dynamics import RolloutBatch
from tests.kernels.errors import worst
from tests.kernels.hopper.on_cpu import needs_compiler, use_cpu

C, SIDE, A = 64, 7, 3


class _Rounded(torch.autograd.Function):
    """x, and its gradient on the way back, as bfloat16 would have them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: bool, back: bool) -> Tensor:
        ctx.back = back
        return x.bfloat16().to(x.dtype) if there else x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,) = grads
        return g.bfloat16().to(g.dtype) if ctx.back else g, None, None


def rounded(x: Tensor, *, there: bool = True, back: bool = True) -> Tensor:
    """See `_Rounded`."""
    found: Tensor = _Rounded.apply(x, there, back)  # type: ignore[no-untyped-call]
    return found


def reference(z: Tensor, actions: Tensor, parameters: dict[str, Tensor], num_kept: int) -> tuple[Tensor, Tensor]:
    """All states of the first batch, the last ones of the second, rounded where the kernels round."""
    w1, w2 = rounded(parameters["w1"], back=False), rounded(parameters["w2"], back=False)
    maps = parameters["maps"].unflatten(1, (SIDE, SIDE, C)).permute(0, 3, 1, 2)
    found = []
    for part in (slice(0, num_kept), slice(num_kept, None)):
        x, states = z[part], []
        for a in actions[part].unbind(1) if len(x) else ():
            x = rounded(F.relu(F.conv2d(x, w1, padding=1) + maps[a]))
            x = rounded(F.batch_norm(x, None, None, parameters["gamma"], parameters["beta"], training=True))
            v = rounded(F.conv2d(x, w2, parameters["b2"], padding=1), there=False)
            x = rounded(rescale(F.relu(v)), back=False)
            states.append(x)
        found.append(torch.stack(states) if states else z.new_zeros(actions.shape[1], 0, C, SIDE, SIDE))
    return found[0], found[1][-1]


def over_regions(gradient: Tensor | None) -> Tensor:
    """Sums of a gradient of maps over the positions that share a value."""
    assert gradient is not None
    rows = gradient.unflatten(1, (SIDE, SIDE, C)).split([1, SIDE - 2, 1], 1)
    return torch.stack([part.sum((1, 2)) for row in rows for part in row.split([1, SIDE - 2, 1], 2)])


def inputs(
    samples: int, steps: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Starts, actions and parameters, the same for every type."""
    torch.manual_seed(0)
    maps = torch.randn(A, SIDE, SIDE, C) * 0.3
    maps[:, 1:-1] = maps[:, 1:2]  # as maps of constant planes are
    maps[:, :, 1:-1] = maps[:, :, 1:2]
    inner = torch.randn(C, C + A, 3, 3).contiguous(memory_format=torch.channels_last) * 0.06
    parameters = {
        "maps": maps.flatten(1),
        "w1": inner[:, :C],
        "gamma": 1 + 0.1 * torch.randn(C),
        "beta": 0.1 * torch.randn(C),
        "w2": torch.randn(C, C, 3, 3) * 0.06,
        "b2": 0.1 * torch.randn(C),
    }
    z, actions = torch.rand(samples, C, SIDE, SIDE).bfloat16(), torch.randint(A, (samples, steps))
    found = {name: p.to(device, dtype).requires_grad_() for name, p in parameters.items()}
    return z.to(device, dtype).requires_grad_(), actions.to(device), found


def errors(samples: int, steps: int, num_kept: int, device: str = "cpu") -> dict[str, float]:
    """Relative errors of all results and gradients against the reference in float64."""
    from playvirtual.kernels.hopper import rollout_hopper

    z, actions, parameters = inputs(samples, steps, torch.float64, device)
    states, last = reference(z, actions, parameters, num_kept)
    upstream = torch.randn(steps, samples, C, SIDE, SIDE, device=device).bfloat16()

    def gradients(states: Tensor, last: Tensor, z: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        loss = (states * upstream[:, :num_kept].to(states)).sum() + (last * upstream[-1, num_kept:].to(last)).sum()
        loss.backward()
        found = {"states": states, "last": last, "dz": z.grad, **{f"d{name}": p.grad for name, p in parameters.items()}}
        found["dmaps"] = over_regions(parameters["maps"].grad)
        return {name: t.detach().double() for name, t in found.items() if t is not None}

    expected = gradients(states, last, z, parameters)
    z, actions, parameters = inputs(samples, steps, torch.float32, device)
    flat = z.permute(0, 2, 3, 1).flatten(1, 2).bfloat16()
    kept, last, *_ = rollout_hopper.rollout(flat, actions, *parameters.values(), num_kept)
    size = (SIDE, SIDE)
    found = gradients(kept.unflatten(2, size).permute(0, 1, 4, 2, 3), last.unflatten(1, size).permute(0, 3, 1, 2), z,
                      parameters)  # fmt: skip
    return {
        name: float((found[name] - value).norm() / value.norm()) for name, value in expected.items() if value.numel()
    }


@pytest.fixture
def new_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is read before it was written is noticed."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(1).new_empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("new_memory_is_nan")
@pytest.mark.parametrize(
    ("samples", "steps", "processors", "num_kept", "lazy"),
    [(7, 2, 2, 3, False), (3, 3, 2, 0, True), (17, 2, 2, 17, True), (9, 3, 7, 4, True)],
)
def test_kernels_compute_what_pytorch_does(
    monkeypatch: pytest.MonkeyPatch, samples: int, steps: int, processors: int, num_kept: int, lazy: bool
) -> None:
    """On the CPU, in blocks of four, two, nine and again two states, and an odd number of states in all for the
    parameters' gradients, which one block per filter makes or three do, with more pairs of states than stages.

    Products read shared memory, and copies write it, when begun or as late as they may.
    """
    use_cpu(monkeypatch, processors, lazy=lazy)
    found = errors(samples, steps, num_kept)
    assert worst(found.values()) < 0.03, found


@pytest.mark.parametrize("samples", [1, 32, 384, 416, 1152, 1184])
def test_batches_of_the_presets_fit_an_h200(samples: int) -> None:
    from playvirtual.kernels.hopper import rollout_hopper

    shape = rollout_hopper.shape_for(samples, 132)
    assert shape is not None
    assert shape.blocks <= 132
    assert shape.blocks * shape.warpgroups * shape.states >= samples
    assert shape.shared <= 232_448


def test_batches_that_do_not_fit_have_no_shape() -> None:
    from playvirtual.kernels.hopper import rollout_hopper

    assert rollout_hopper.shape_for(1189, 132) is None
    assert rollout_hopper.shape_for(416, 33) is None  # a quarter of the SMs


@pytest.mark.parametrize(("samples", "blocks"), [(32, 32), (132, 132), (384, 43), (416, 47), (1184, 132)])
def test_dense_batches_take_as_few_sms_as_hold_them(samples: int, blocks: int) -> None:
    from playvirtual.kernels.hopper import rollout_hopper

    shape = rollout_hopper.shape_for(samples, 132, dense=True)
    assert shape is not None
    assert shape.blocks == blocks
    assert shape.blocks * shape.warpgroups * shape.states >= samples


def test_other_devices_sizes_and_precisions_are_left_to_triton() -> None:
    from playvirtual.kernels.hopper import rollout_hopper

    size = (416, C, SIDE, SIDE)
    assert not rollout_hopper.usable(torch.device("cpu"), torch.bfloat16, size, A)
    assert not rollout_hopper.usable(torch.device("cuda"), torch.float32, size, A)
    assert not rollout_hopper.usable(torch.device("cuda"), torch.bfloat16, (416, C, SIDE, 6), A)
    assert not rollout_hopper.usable(torch.device("cuda"), torch.bfloat16, size, 38)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA toolkit")
@pytest.mark.parametrize(("warpgroups", "states"), [(2, 2), (3, 3), (0, 0)])  # (0, 0): the parameters' gradients
def test_a_toolkit_compiles_them_for_hopper(tmp_path: Path, warpgroups: int, states: int) -> None:
    from playvirtual.kernels.hopper import gradients_hopper, rollout_hopper

    source = rollout_hopper.source(warpgroups, states) if warpgroups else gradients_hopper.source()
    (tmp_path / "kernels.cu").write_text(source)
    command = ["nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "kernels.cu"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "wgmma.mma_async instructions are serialized" not in result.stderr  # products that wait for each other


def _usable(samples: int) -> bool:
    if not kernels.AVAILABLE:
        return False
    from playvirtual.kernels.hopper import rollout_hopper

    return bool(rollout_hopper.usable(torch.device("cuda"), torch.bfloat16, (samples, C, SIDE, SIDE), A))


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
@pytest.mark.parametrize(
    ("samples", "num_kept"), [(1, 1), (150, 0), (384, 0), (416, 32), (700, 32), (1000, 32), (1184, 32)]
)
def test_compiled_kernels_compute_what_pytorch_does(samples: int, num_kept: int) -> None:
    if not _usable(samples):
        pytest.skip("no Hopper GPU")
    # More steps enlarge the error of gradients, in Triton's kernels as much as in these.
    for steps, limit in ((1, 0.02), (3, 0.15)):
        found = errors(samples, steps, num_kept, "cuda")
        assert worst(found.values()) < limit, found


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_both_kinds_of_kernels_agree() -> None:
    if not _usable(40):
        pytest.skip("no Hopper GPU")
    torch.manual_seed(0)
    model = ConvDynamics(C, DiscreteActions(A)).cuda()
    z, actions = torch.rand(40, C, SIDE, SIDE, device="cuda").bfloat16(), torch.randint(A, (40, 1), device="cuda")
    batches = RolloutBatch(z[:8], actions[:8]), RolloutBatch(z[8:], actions[8:], last_only=True)
    found, before = [], kernels.persistent_wanted()
    for persistent in (True, False):
        kernels.use_persistent(persistent)
        try:
            found.append([t.detach().float() for t in model.rollouts(*batches)])
        finally:
            kernels.use_persistent(before)
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-3
