"""The comparison over several studies of MinAtar in results/noise-and-m, and the figures that its page has from it."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "results" / "noise-and-m" / "pooled.py"
if not PROGRAM.exists():
    pytest.skip("results/ is not here", allow_module_level=True)


def test_studies_count_by_their_runs_and_runs_are_compared_within_a_study() -> None:
    """One run of a study wins; two of another lose, though they are higher than all runs of the first."""
    one, two = np.array([[3.0]]), np.array([[10.0], [11.0]])
    found = runpy.run_path(str(PROGRAM))["pooled"]([(one, one - 1), (two, two + 5)])
    assert [float(value) for value in found] == pytest.approx([1 / 3] * 3)


def test_the_page_has_the_figures_that_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROGRAM), run_name="__main__")
    page = PROGRAM.with_name("README.md").read_text(encoding="utf-8")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["minatar", "baselines", "noise-and-m", "all"]
    assert all(line.rpartition(" runs, ")[2] in page for line in lines)
