"""cpu_versions.py compares a version with itself, and knows the names of older versions."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.waiting import HANG

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "cpu_versions.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.long
def test_a_version_is_compared_with_itself() -> None:
    """Both sides get every setting, so nothing is ignored; the rates and their ratios agree with each other."""
    words = [ROOT, ROOT, "--rows", "toy/catch:rl", "--rounds", "2", "--seconds", "0.5"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stdout
    line = (
        r"toy/catch:rl +([0-9.]+) → +([0-9.]+) steps/s, ratio ([0-9.]+) \[([0-9.]+), ([0-9.]+)\] of 2 rounds of 0.5 s\n"
    )
    found = re.fullmatch(line, done.stdout)
    assert found is not None, done.stdout
    first, second, ratio, lowest, highest = map(float, found.groups())
    assert min(first, second) > 0
    assert ratio == pytest.approx((lowest + highest) / 2, abs=0.011)  # the median of two
    assert lowest - 0.01 <= second / first <= highest + 0.01  # a ratio of sums lies between those of the parts


@pytest.mark.slow
def test_the_worker_names_the_script_that_it_belongs_to() -> None:
    worker = SCRIPT.with_name("version_worker.py")
    done = subprocess.run([sys.executable, worker, "--help"], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a helper of cpu_versions.py")
    assert done.stdout.count("\n") == 1


def test_settings_are_translated_for_versions_from_before_the_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        worker = import_module("version_worker")
    finally:
        sys.path.remove(str(SCRIPT.parent))
    settings = {"learning_starts": 400, "eval_envs": 10, "compile": "full", "target_tau": 1.0, "steps": 9}
    assert worker.to_own(settings) == settings
    monkeypatch.setattr(worker, "BEFORE_RENAMES", True)
    old = {"min_size": 400, "lanes": 10, "capture": "compile", "target_tau": 0.0, "steps": 9}
    assert worker.to_own(settings) == old
    assert worker.from_own(old) == settings
