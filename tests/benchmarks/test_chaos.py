"""Kills at random moments and inside checkpoint writing, a short version of benchmarks/chaos.py."""

import random
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

OPTIONS = [
    *("--steps", "300", "--learning-starts", "100", "--eval-every", "150", "--eval-episodes", "5"),
    *("--checkpoint-every", "50", "--log-every", "25"),
]


@pytest.mark.long
@pytest.mark.slow(seconds=25)
def test_a_run_killed_again_and_again_is_the_same_run(tmp_path: Path) -> None:
    chaos.finish(chaos.command("toy/catch", OPTIONS, tmp_path / "whole"))
    words, tally = chaos.command("toy/catch", OPTIONS, tmp_path / "killed"), chaos.Tally()
    if not chaos.harass(words, 4, 1.0, random.Random(3), tally):
        chaos.finish(words)
    assert tally.kills >= 2
    assert sum(tally.inside.values()) >= 1
    assert chaos.compare(tmp_path / "whole", tmp_path / "killed") == "identical"


def test_runs_that_differ_are_told_apart(tmp_path: Path) -> None:
    for name, loss in (("a", 0.5), ("b", 0.25)):
        folder = tmp_path / name / "checkpoints" / "step-000000010"
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(b"same")
        (tmp_path / name / "metrics.jsonl").write_text(f'{{"step": 10, "loss": {loss}}}\n')
        (tmp_path / name / "evaluations.jsonl").write_text("")
    with pytest.raises(SystemExit, match=r"a/metrics.jsonl and .*b/metrics.jsonl differ"):
        chaos.compare(tmp_path / "a", tmp_path / "b")
    assert chaos.compare(tmp_path / "a", tmp_path / "b", exact=False).startswith(
        "0 of 1 lines identical, largest difference 0.25"
    )


def test_the_kills_are_spread_over_the_tasks() -> None:
    counts = chaos.quota(100, list(chaos.DEFAULT))
    assert sum(counts.values()) == 100
    assert min(counts.values()) == counts["dmc/cartpole-swingup"] >= 10
