"""Kills at random moments, a short version of benchmarks/chaos.py."""

import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))  # as `python benchmarks/chaos.py` has it
try:
    chaos = import_module("chaos")
finally:
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.slow(seconds=25)
def test_a_run_killed_again_and_again_is_the_same_run(tmp_path: Path) -> None:
    options = [
        *("--steps", "600", "--eval-every", "300", "--eval-episodes", "5"),
        *("--checkpoint-every", "50", "--log-every", "25"),
    ]
    subprocess.run(chaos.command("toy/catch", options, tmp_path / "whole"), check=True)
    words = chaos.command("toy/catch", options, tmp_path / "killed")
    tally = chaos.harass(words, 4, 1.0, random.Random(3))
    assert tally.kills + tally.terms >= 2
    chaos.compare(tmp_path / "whole", tmp_path / "killed")
