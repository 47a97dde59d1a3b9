"""The errors of dynamics models in results/replay-ratio are what its program measures on real runs."""

from __future__ import annotations

import csv
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch

import playvirtual as pv

PROGRAM = Path(__file__).parents[2] / "results" / "replay-ratio" / "dynamics_models.py"
if not PROGRAM.exists():
    pytest.skip("results/ is not here", allow_module_level=True)


def test_the_distance_is_that_of_normalised_states() -> None:
    distance = runpy.run_path(str(PROGRAM))["distance"]
    x, y = torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, 2.0]]), torch.tensor([[5.0, 0.0], [1.0, -1.0], [0.0, -1.0]])
    assert distance(x, y).tolist() == pytest.approx([0.0, 2.0, 4.0], abs=1e-6)  # along, across, against


@pytest.mark.slow
def test_an_untrained_model_predicts_no_better_than_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("rl", "spr"):
        pv.train(
            "minatar/breakout", method=method, steps=1004, eval_episodes=1, run_dir=tmp_path / method, device="cpu"
        )
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["dynamics_models.py", str(tmp_path)])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["method"], row["k"]) for row in rows] == [("spr", "1"), ("spr", "2"), ("spr", "3")]  # rl has no model
    assert all(float(row["error"]) > 0.7 for row in rows)  # trained ones: 0.1 to 0.2
    assert all(0 < float(row["unchanged"]) < 1.5 for row in rows)  # games move on, and states are of one game
