"""The list of an update's kernels is what the profiler saw, update by update."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def test_updates_are_told_apart_by_pauses_and_listed_by_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    script = runpy.run_path(str(SCRIPTS / "update_kernels.py"))

    def update(begin: float, *kernels: tuple[str, float, float]) -> list[object]:
        found, now = [], begin
        for name, gap, duration in kernels:
            now += gap
            found.append(script["Launch"](name, "2×1×1", "128×1×1", 64, now, duration))
            now += duration
        return found

    launches = [
        *update(0.0, ("crop", 0.0, 3.0), ("conv", 1.0, 10.0)),
        *update(9_000.0, ("crop", 0.0, 4.0), ("conv", 2.0, 30.0)),
        *update(20_000.0, ("crop", 0.0, 5.0), ("conv", 6.0, 20.0)),
        *update(30_000.0, ("crop", 0.0, 900.0)),  # an update of another kind, with fewer launches
    ]
    updates = script["split_updates"](launches[::-1])
    assert [len(one) for one in updates] == [2, 2, 2, 1]
    crop, conv = script["table"](updates)
    assert (crop["place"], crop["us"], crop["gap_us"], crop["kernel"]) == (0, 4.0, 0.0, "crop")
    assert (conv["place"], conv["us"], conv["gap_us"], conv["kernel"]) == (1, 20.0, 2.0, "conv")
    assert (conv["grid"], conv["block"], conv["shared"]) == ("2×1×1", "128×1×1", 64)
