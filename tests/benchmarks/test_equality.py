"""Compiled losses and gradients are the eager ones: the CPU's part of benchmarks/equality.py."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from tests.waiting import HANG

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "equality.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))  # as `python benchmarks/equality.py` has it
try:
    equality, variants = import_module("equality"), import_module("variants")
finally:
    sys.path.remove(str(SCRIPT.parent))

CPU = torch.device("cpu")


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize(
    "task", ["toy/catch", pytest.param("toy/reach", marks=pytest.mark.long)]
)  # Rainbow with convolutional dynamics, SAC
def test_compiled_losses_and_gradients_equal_eager_ones(task: str) -> None:
    why = equality.missing(equality.COMPILED, CPU)
    if why:
        pytest.skip(f"torch.compile on a CPU: {why}")
    reference = equality.compute(task, CPU, equality.EAGER["fp32"], K=1)
    # Scalar kernels compile sooner, and which vector instructions the compiler knows need not be found out.
    with inductor.patch({"cpp.simdlen": 1, "cpp.vec_isa_ok": True}):
        found = equality.compute(task, CPU, equality.COMPILED, K=1)
    losses, gradients = equality.compare(found, reference)
    assert {"pred", "cyc"} < {name.removeprefix("loss_") for name in losses}
    assert {"encoder", "forward_dynamics", "backward_dynamics", "predictor"} < gradients.keys()
    assert all(float(value.norm()) > 0 for value in reference.gradients.values())
    assert max(losses.values()) < 1e-4
    assert max(gradients.values()) < 1e-4


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_the_same_seed_gives_the_same_inputs_losses_and_gradients(task: str) -> None:
    first, second = (equality.compute(task, CPU, equality.EAGER["fp32"]) for _ in range(2))
    losses, gradients = equality.compare(first, second)
    assert set(losses.values()) | set(gradients.values()) == {0.0}


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_every_precision_is_noticed_and_is_as_far_from_float64_as_its_mantissa_says(task: str) -> None:
    reference = equality.compute(task, CPU, equality.REFERENCE, K=1)
    assert all(value.dtype == torch.float64 for value in reference.gradients.values())
    found = {name: equality.compute(task, CPU, equality.EAGER[name], K=1) for name in ("fp32", "bf16")}
    errors = {name: equality.compare(outcome, reference) for name, outcome in found.items()}
    worst = {name: tuple(max(part.values()) for part in both) for name, both in errors.items()}  # losses, gradients
    assert 0 < worst["fp32"][0] < 1e-5
    assert 0 < worst["fp32"][1] < 1e-3
    assert 1e-4 < worst["bf16"][0] < equality.LOSSES["bf16"]
    assert 1e-3 < worst["bf16"][1] < 0.5
    assert torch.get_default_dtype() == torch.float32


def test_errors_and_limits_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    reference, found = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert equality.relative(found, reference) == pytest.approx(0.1)
    assert equality.relative(found, reference, scale=torch.tensor([0.5])) == pytest.approx(1.0)
    assert equality.relative(torch.tensor([float("nan"), 4.0]), reference) == float("inf")
    assert equality.within({"encoder": 0.1, "head": 0.0}, 1e-5) == {"encoder": 0.4, "head": 1e-5}
    assert not equality.report("toy/catch", "row", "losses", {"rl": 0.1, "cyc": 3.0}, {"rl": 0.05, "cyc": 4.0})
    assert "0.1" not in (shown := capsys.readouterr().out)
    assert "1.0e-01  5.0e-02  EXCEEDED" in shown  # the part that is worst for its limit, not the largest error
    assert equality.report("toy/catch", "row", "losses", {"rl": 0.1}, {"rl": 0.2})
    assert not equality.report("toy/catch", "row", "parameters", {"rl": 1e-9}, {"rl": 0.0})
    assert equality.report("toy/catch", "row", "parameters", {"rl": 0.0}, {"rl": 0.0})


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=HANG)


@pytest.mark.slow
def test_a_filter_that_fits_no_row_is_bad_input() -> None:
    done = run("--only", "zzz")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: only: 'zzz' ")
    assert line.endswith("cudagraph fused fp32")  # the names that are allowed


@pytest.mark.slow
def test_rows_that_are_all_left_out_are_no_success() -> None:
    done = run("--only", "cudagraph", "--device", "cpu", "--tasks", "toy/catch")
    assert done.returncode == 1
    assert done.stdout.count("left out: ") == 2
    assert done.stderr == "nothing was compared: every row was left out\n"


@pytest.mark.parametrize(("task", "kinds"), [("toy/catch", 1), ("toy/reach", 2)])
def test_an_update_of_the_same_state_is_bit_exact_on_the_cpu(task: str, kinds: int) -> None:
    assert equality.check(task, CPU, "eager fp32 repeated") == [True, True] * kinds


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_a_cuda_graph_changes_what_an_eager_update_does(task: str) -> None:
    results = equality.check(task, torch.device("cuda"), "cudagraph")
    assert results
    assert all(results)


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_an_update_changes_what_is_compared(task: str) -> None:
    updates = list(variants.repeat_updates(task, CPU, K=1))
    moved = {
        (kind, part)
        for update in updates
        for kind in ("moments", "parameters")
        for part, before in getattr(update.before, kind).items()
        if not torch.equal(before, getattr(update.eager, kind)[part])
    }
    assert moved == {(kind, part) for kind in ("moments", "parameters") for part in getattr(updates[0].before, kind)}


def test_changes_by_hand() -> None:
    before, eager, replayed = (
        variants.Contents({"adam": torch.tensor(m)}, {}) for m in ([0.0, 1.0], [3.0, 5.0], [3.0, 6.0])
    )
    update = variants.RepeatedUpdate(0, before, eager, eager, replayed)
    assert equality.changes(update, "moments", "repeated") == {"adam": 0.0}
    assert equality.changes(update, "moments", "replayed") == {"adam": pytest.approx(1 / 5)}  # 1 off, 5 moved
