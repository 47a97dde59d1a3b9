"""The profile on the CPU: its list of parts follows the code, and its stopwatch restores what it has wrapped."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPTS))  # as `python benchmarks/cpu_profile.py` has it
try:
    cpu_profile = import_module("cpu_profile")
    stopwatch = import_module("stopwatch")
finally:
    sys.path.remove(str(SCRIPTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["toy/catch", "toy/reach", "toy/reach --method rl"]
)  # Rainbow, SAC, SAC without an auxiliary objective
def test_every_part_is_found_and_the_shares_are_those_of_a_run(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, number in {"FILL": 40, "WARM": 5, "UPDATES": 2}.items():
        monkeypatch.setattr(cpu_profile, name, number)
    monkeypatch.setattr(sys, "argv", ["cpu_profile.py", "--steps", "40", *words.split()])
    cpu_profile.main()
    lines = re.findall(r"^ +(\S.*?) +([0-9.]+) ms +([0-9.]+)%$", capsys.readouterr().out, re.M)
    times, shares = {part: float(ms) for part, ms, _ in lines}, {part: float(share) for part, _, share in lines}
    assert shares["interact"] + shares["learn"] == pytest.approx(100, abs=2)
    for part in ("act", "replay: add", "replay: sample", "losses", "backward", "gradient norms", "optimizer"):
        assert times[part] > 0


@pytest.mark.slow
def test_a_trainer_to_be_profiled_has_neither_overdue_nor_premature_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """toy/catch makes an update every other step: 10 in the 20 steps after 5 of warm-up."""
    monkeypatch.setattr(cpu_profile, "FILL", 30)
    monkeypatch.setattr(cpu_profile, "WARM", 5)
    config = cpu_profile.checked("toy/catch", method="rl", device="cpu", threads=1, learning_starts=30)
    cpu_profile.operations(cpu_profile.warmed(config))
    trainer = cpu_profile.warmed(config)
    before = trainer.learner.updates
    cpu_profile.parts(trainer, 20)
    assert trainer.learner.updates - before == 10


def test_a_part_that_does_not_exist_or_is_never_called_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_profile, "FILL", 30)
    trainer = cpu_profile.warmed(cpu_profile.checked("toy/catch", method="rl", device="cpu", learning_starts=30))
    for method, error in (
        ("append", AttributeError),
        ("load_state_dict", RuntimeError),
    ):  # does not exist; is not called in training
        monkeypatch.setattr(cpu_profile, "parts_of", lambda _, m=method: [(trainer.replay, m, "store")])
        with pytest.raises(error, match=method):
            cpu_profile.parts(trainer, 2)


def test_a_stopwatch_restores_the_methods() -> None:
    class Counter:
        def count(self) -> int:
            return 1

    def free() -> int:
        return 2

    counter, module = Counter(), SimpleNamespace(free=free)
    with stopwatch.Stopwatch() as watch:
        watch.watch(counter, "count", "part")
        watch.watch(module, "free", "part")
        assert counter.count() + module.free() == 3
    assert watch.calls == {"Counter.count": 1, "SimpleNamespace.free": 1}
    assert watch.seconds["part"] > 0
    assert "count" not in vars(counter)
    assert module.free is free
