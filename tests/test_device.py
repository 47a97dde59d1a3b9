"""The arithmetic of a run is the one its configuration names, whoever computes and whatever ran before."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import playvirtual as pv
from playvirtual import device as device_module
from playvirtual.device import effective_precision
from playvirtual.study.probes.probe import dynamics_mse
from playvirtual.training.trainer import Trainer
from tests.training.equal_runs import same
from tests.training.interrupting import interrupted

SMALL: dict[str, Any] = {
    "device": "cpu",
    "steps": 70,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 2,
    "eval_every": 0,
}


@pytest.fixture(autouse=True)
def _given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What runs here ask for is not to be taken back in a later test, which would compute with three threads.
    monkeypatch.setattr(device_module, "_thread_count", device_module._ThreadCount())
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def threads_of(count: int) -> int:
    """How many threads a training with `threads=count` computes with."""
    with closing(Trainer(pv.build("toy/catch", **SMALL, threads=count))):
        return torch.get_num_threads()


def test_zero_threads_are_pytorchs_own_choice_after_other_runs_too() -> None:
    torch.set_num_threads(3)
    assert [threads_of(count) for count in (0, 2, 1, 0, 0, 2, 0)] == [3, 2, 1, 3, 3, 2, 3]


def test_a_choice_that_someone_made_since_is_not_undone() -> None:
    torch.set_num_threads(3)
    assert threads_of(2) == 2
    torch.set_num_threads(4)
    assert threads_of(0) == 4


@pytest.mark.slow
def test_a_run_resumes_with_as_many_threads_as_it_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Networks of this size have their sums split among threads: another number of them ends in other bits."""
    options = {**SMALL, "threads": 0, "steps": 80, "hidden": 200, "batch_size": 64, "log_every": 20}
    torch.set_num_threads(2)
    whole = pv.train("toy/catch", run_dir=tmp_path / "whole", quiet=True, **options).path
    interrupted("toy/catch", options, tmp_path / "parts", 70)
    torch.set_num_threads(1)
    parts = pv.resume(tmp_path / "parts", quiet=True).path
    assert torch.get_num_threads() == 2
    assert "was written with 2 CPU threads, not 1, and resumes with 2" in capsys.readouterr().err
    same(whole, parts)
    assert threads_of(0) == 1  # the next run has PyTorch's choice again


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arithmetic") / "run"
    return pv.train("toy/catch", run_dir=path, quiet=True, **SMALL, threads=1, precision="fp32").path


@pytest.mark.parametrize(
    "use",
    [
        lambda run: pv.load(run, device="cpu"),
        lambda run: pv.evaluate(run, episodes=1, device="cpu"),
        lambda run: dynamics_mse(run, transitions=2, device="cpu"),
    ],
    ids=["load", "evaluate", "dynamics_mse"],
)
def test_an_agent_computes_as_its_run_did(use: Callable[[Path], object], run: Path) -> None:
    torch.set_num_threads(3)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    use(run)
    assert torch.get_num_threads() == 1
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("wanted", ["fp32", "tf32", "bf16"])
def test_what_has_no_tensor_cores_for_it_computes_in_fp32(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pv.build("atari/pong", precision=wanted)
    found = {}
    for card, capability in {"T4": (7, 5), "A100": (8, 0), "H200": (9, 0)}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, answer=capability: answer)
        found[card] = effective_precision(torch.device("cuda"), config.precision)
    assert found == {"T4": "fp32", "A100": wanted, "H200": wanted}
    assert effective_precision(torch.device("cpu"), config.precision) == "fp32"


def test_a_run_that_was_given_a_gpu_does_not_fall_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_module.resolve_device("auto").type == "cpu"
    monkeypatch.setenv(device_module.GPU_EXPECTED, "1")
    for name in ("auto", "cuda"):  # not an InputError, after which the sweep would not try the run again
        with pytest.raises(pv.RunError, match=r"^device: the sweep gave this run a GPU, but PyTorch sees none"):
            device_module.resolve_device(name)
    assert device_module.resolve_device("cpu").type == "cpu"


class TestPartsOfAGpu:
    """Under MPS a process may have a part of the SMs, on some of which cuBLAS multiplies wrongly."""

    gpu = torch.device("cuda")

    @pytest.fixture(autouse=True)
    def _part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(device_module.PARTITION, "56")
        seen = type("Properties", (), {"multi_processor_count": 72})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)

    def test_right_products_are_right(self) -> None:
        assert device_module.products_are_right(torch.device("cpu"), rounds=1)

    @pytest.mark.parametrize("wrong", [0.05, float("nan"), float("inf")])
    def test_one_wrong_number_of_a_product_is_noticed(self, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
        addmm = torch.addmm

        def with_one_wrong(*given: torch.Tensor) -> torch.Tensor:
            found = addmm(*given)
            found[0, 0] += wrong * found.float().norm()
            return found

        monkeypatch.setattr(torch, "addmm", with_one_wrong)
        assert not device_module.products_are_right(torch.device("cpu"), rounds=1)

    def test_wrong_products_end_a_run_in_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_module, "products_are_right", lambda device: False)
        with pytest.raises(pv.InputError, match=r"^CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: 56 leaves 72 SMs, .*allowed: "):
            device_module.configure_torch(self.gpu, "bf16")

    @pytest.mark.parametrize(("device", "part"), [("cuda", None), ("cuda", "100"), ("cpu", "56")])
    def test_nothing_is_tried_without_a_part(
        self, device: str, part: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if part is None:
            monkeypatch.delenv(device_module.PARTITION)
        else:
            monkeypatch.setenv(device_module.PARTITION, part)
        monkeypatch.setattr(device_module, "products_are_right", lambda device: pytest.fail("it was tried"))
        device_module.configure_torch(torch.device(device), "bf16")
