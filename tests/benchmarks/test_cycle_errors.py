"""What is measured of cycles, on models that can be followed by hand and on checkpoints of real runs."""

from __future__ import annotations

import csv
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import playvirtual as pv
from playvirtual.method import DiscreteActions, SamplerInput, SelfPrediction, VirtualTrajectories
from playvirtual.method.loss import _Views
from playvirtual.replay.batches import SequenceBatch

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)

QUARTER = torch.tensor([[0.0, -1.0], [1.0, 0.0]])  # a turn by 90 degrees


def turn(z: Tensor, actions: Tensor, direction: int) -> Tensor:
    """States (N, 2) turned by 90 degrees where the action is 1, and left as they are where it is 0."""
    turned = z @ (QUARTER if direction < 0 else QUARTER.T)
    return torch.where(actions[:, None] == 1, turned, z)


class ZeroThenOne:
    """Action 0 for the first sample and action 1 for the second."""

    sees_state = False

    def __call__(self, seen: SamplerInput) -> Tensor:
        return torch.tensor([0, 1]).view(2, 1, 1)


def test_turns_of_the_plane_close_and_the_other_way_back_misses_by_what_the_actions_are_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sequences of one step; the recorded actions are 1 and 0, the virtual ones 0 and 1."""
    monkeypatch.syspath_prepend(SCRIPTS)
    figures = runpy.run_path(str(SCRIPTS / "cycle_errors.py"))["figures"]
    east, north = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    observations = torch.stack([torch.stack([east, north]), torch.stack([north, -north])])  # (B, K+1, 2)

    same = nn.Flatten()
    models: dict[str, Any] = {"forward": lambda z, a: turn(z, a, 1)}
    virtual = VirtualTrajectories(
        **models, backward=lambda z, a: turn(z, a, -1), actions=DiscreteActions(2), K=1, M=1, sampler=ZeroThenOne()
    )
    heads: dict[str, Any] = dict.fromkeys(("projector", "target_projector", "predictor"), same)
    objective = SelfPrediction(
        encoder=same, target_encoder=same, augment=_Views(None), **heads, forward=virtual.h, K=1, virtual=virtual
    )
    batch = SequenceBatch(torch.arange(2), observations, torch.tensor([[1], [0]]), torch.ones(2, 2))
    found = figures(objective, batch, None)
    # h turns east to north, as it came, and leaves north, where its opposite came: distances 0 and 2 − 2 cos 180° = 4.
    assert found == pytest.approx(
        {
            "prediction": 2.0,
            "unchanged": 3.0,  # 90 and 180 degrees: 2 and 4
            "cycle": 0.0,
            "recorded": 0.0,
            "other way": 2.0,  # one turn too many or too few: 90 degrees for both
            "no steps": 0.0,
            "other state": 2.0,  # east and north
            "latent": 0.0,
        },
        abs=1e-6,
    )


@pytest.mark.slow  # 8 s
@pytest.mark.parametrize(
    ("task", "options", "cycles"),
    [("toy/catch", {"K": 2, "M": "1"}, True), ("toy/reach", {"K": 2, "method": "spr"}, False)],
)
def test_a_checkpoint_has_a_row(
    task: str, options: dict[str, Any], cycles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, out = tmp_path / "run", tmp_path / "cycles.csv"
    pv.train(task, steps=240, learning_starts=200, eval_episodes=1, run_dir=run_dir, device="cpu", **options)
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", ["cycle_errors.py", str(run_dir), "--batches", "2", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / "cycle_errors.py"), run_name="__main__")
    assert not ended.value.code
    (row,) = csv.DictReader(out.open())
    assert (row["task"], row["step"]) == (task, "240")
    assert 0 < float(row["prediction"]) < 4
    assert bool(row["cycle"]) == cycles
    assert not cycles or all(math.isfinite(float(row[name])) for name in ("recorded", "other way", "latent"))
