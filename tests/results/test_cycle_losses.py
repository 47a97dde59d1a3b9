"""How large the cycle loss of the runs in results/ is, and the figures that docs/results.md has from it."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "results" / "cycle_losses.py"
if not PROGRAM.exists():
    pytest.skip("results/ is not here", allow_module_level=True)


def test_a_window_is_the_mean_of_its_lines(tmp_path: Path) -> None:
    """Lines at steps 1, 2, 3 and 4, of which the second and third count; an agent that logs no norms has none."""
    lines = [{"step": step, "loss_pred": float(step), "loss_cyc": step / 10} for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = runpy.run_path(str(PROGRAM))["window"](tmp_path, 2, 3)
    assert (found.pred, found.cyc, found.loss_share) == pytest.approx((2.5, 0.25, 0.1))
    assert found.forward_norm != found.forward_norm  # NaN


def test_the_page_has_the_figures_that_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROGRAM), run_name="__main__")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    summary = capsys.readouterr().out.rstrip().rpartition("\n\n")[2].splitlines()
    assert len(summary) == 7
    for line in summary[:-1]:
        losses, _, norms = line.partition("L_cyc / L_pred ")[2].partition(", norms ")
        assert losses in page
        assert norms in page
    assert summary[-1].rpartition(" in ")[2].removesuffix(" pairs at the end") in page


def test_the_table_of_cycles_has_the_means_of_its_data() -> None:
    folder = ROOT / "results" / "virtual"
    page = (folder / "README.md").read_text(encoding="utf-8")
    with (folder / "cycle_errors.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for game in ("breakout", "asterix", "space_invaders"):
        runs = [row for row in rows if row["task"] == f"minatar/{game}"]
        assert len(runs) == 3
        names = ("prediction", "unchanged", "cycle", "other way", "other state", "latent")
        means = [f"{fmean(float(run[name]) for run in runs):.3f}" for name in names]
        assert f"| {game} | {' | '.join(means)} |" in page
