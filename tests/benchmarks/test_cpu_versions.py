"""The comparison of two versions: a version beside itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "cpu_versions.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def test_a_version_is_as_fast_as_itself() -> None:
    """Within what a busy machine allows; both sides get every setting, so nothing is ignored."""
    words = [ROOT, ROOT, "--rows", "toy/catch:rl", "--rounds", "2", "--seconds", "0.5"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stdout
    ratio = re.search(r"ratio ([0-9.]+) ", done.stdout)
    assert ratio is not None, done.stdout
    assert 0.2 < float(ratio[1]) < 5


def test_the_worker_says_whose_helper_it_is() -> None:
    worker = SCRIPT.with_name("version_worker.py")
    done = subprocess.run([sys.executable, worker, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a helper of cpu_versions.py")
    assert done.stdout.count("\n") == 1
