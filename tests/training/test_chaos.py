"""Kills at random moments, a short version of benchmarks/chaos.py."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
spec = importlib.util.spec_from_file_location("chaos", SCRIPT)
if spec is None or spec.loader is None or not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
chaos = importlib.util.module_from_spec(spec)
sys.modules["chaos"] = chaos
spec.loader.exec_module(chaos)


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_the_same_run(tmp_path: Path) -> None:
    options = ["--steps", "600", "--every", "300", "--episodes", "5", "--checkpoint-every", "50", "--log-every", "25"]
    subprocess.run(chaos.command("toy/catch", options, tmp_path / "whole"), check=True)
    words = chaos.command("toy/catch", options, tmp_path / "killed")
    tally = chaos.harass(words, 4, 1.0, random.Random(3))
    assert tally.kills + tally.terms >= 2
    chaos.compare(tmp_path / "whole", tmp_path / "killed")
