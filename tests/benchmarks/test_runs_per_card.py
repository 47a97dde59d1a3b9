"""The benchmark of runs that share a card, as far as a machine without one can show: real trainings side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "runs_per_card.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.long]  # every test starts a program


def test_two_trainings_run_side_by_side_and_their_rates_add_up(tmp_path: Path) -> None:
    words = ["toy/catch", "2", "1", "--device=cpu", "--seconds=0.5", "--fill=30", "--warm=5", "--out=rows.json"]
    done = subprocess.run([sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    one, two = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (one["runs"], two["runs"]) == (1, 2)
    assert one["sum"] == one["steps_per_second"] > 0
    assert abs(two["sum"] - 2 * two["steps_per_second"]) < 1e-6 * two["sum"]
    assert two["slowest"] <= two["steps_per_second"]
    for row in (one, two):  # so many runs of that length are done in an hour
        assert abs(row["runs_per_card_hour"] * row["minutes_per_run"] - 60 * row["runs"]) < 1e-6
    assert "2 on the CPU, ready after" in done.stdout
    assert "  1 run: " in done.stdout
    assert f"({two['sum'] / one['sum']:.2f} times one run's)" in done.stdout


def test_without_one_run_there_is_nothing_to_compare_with_and_without_a_gpu_no_mps() -> None:
    words = ["toy/catch", "2", "--device=cpu", "--seconds=0.2", "--fill=30", "--warm=0", "--mps=on"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "times one run's" not in done.stdout
    assert "no GPU: MPS does not apply" in done.stdout
    assert "without MPS" not in done.stdout
    assert "card" not in done.stdout
