"""The work of an update is counted without making a whole period of them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from playvirtual.training.learner import Learner

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPTS))  # as `python benchmarks/update_speed.py` has it
try:
    update_speed = import_module("update_speed")
finally:
    sys.path.remove(str(SCRIPTS))


def flops(task: str, method: str, **change: int) -> float:
    return float(update_speed.count_flops(update_speed.Row("test", task, "off", "fp32", method, change), "cpu"))


def test_one_update_of_each_kind_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    run_update = Learner.run_update
    monkeypatch.setattr(Learner, "run_update", lambda self, kind: (made.append(kind), run_update(self, kind)))
    assert flops("toy/catch", "otr", target_period=4_000) == flops("toy/catch", "otr", target_period=1) > 0
    assert made == [0, 3_999, 0]


def test_kinds_count_by_how_many_updates_are_of_them() -> None:
    always, half, third = (flops("toy/reach", "rl", actor_period=period) for period in (1, 2, 3))
    assert always > half > third > 0
    assert (always - half) / (always - third) == pytest.approx(3 / 4)  # a half and two thirds of them without the actor
