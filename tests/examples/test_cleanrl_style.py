"""The single-file example runs with and without the objective, from the command line's words."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "cleanrl_style_dqn.py"
if not SCRIPT.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))
try:
    example = import_module("cleanrl_style_dqn")
finally:
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.slow(seconds=3)
@pytest.mark.filterwarnings("ignore:.*already in registry")
@pytest.mark.parametrize("env", ["Catch-v0", "MinAtar/Breakout-v1"])
@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["playvirtual", "plain"])
def test_it_learns_and_evaluates(env: str, options: list[str], tmp_path: Path) -> None:
    words = ["--env", env, "--steps", "120", "--every", "60", "--learning-starts", "80", *options]
    scores = example.main([*words, "--csv", str(tmp_path / "returns.csv")])
    assert [step for step, _ in scores] == [60, 120]
    objective = "none" if options else "playvirtual"
    rows = [line.split(",") for line in (tmp_path / "returns.csv").read_text().splitlines()]
    assert [row[:5] for row in rows] == [["cleanrl-dqn", env, objective, "0", step] for step in ("60", "120")]
    assert [float(row[5]) for row in rows] == [mean for _, mean in scores]
