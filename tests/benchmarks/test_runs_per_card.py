"""The benchmark of runs that share a card, as far as a machine without one can show: real trainings side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "runs_per_card.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def test_two_trainings_run_side_by_side_and_their_rates_add_up(tmp_path: Path) -> None:
    words = ["toy/catch", "1", "2", "--device=cpu", "--seconds=0.5", "--fill=30", "--warm=5", "--out=rows.json"]
    done = subprocess.run([sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    one, two = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (one["runs"], two["runs"]) == (1, 2)
    assert one["sum"] == one["steps_per_second"] > 0
    assert abs(two["sum"] - 2 * two["steps_per_second"]) < 1e-6 * two["sum"]
    assert two["slowest"] <= two["steps_per_second"]
    for row in (one, two):  # so many runs of that length are done in an hour
        assert abs(row["runs_per_card_hour"] * row["minutes_per_run"] - 60 * row["runs"]) < 1e-6
    assert "2 on the CPU, ready after" in done.stdout


def test_a_bad_task_is_said_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, "toy/cach", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "did you mean 'toy/catch'" in done.stderr
