"""The error of dynamics models."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual import envs
from playvirtual.envs.families.toy import Catch
from playvirtual.errors import InputError
from playvirtual.runs.folder import RunFolder
from playvirtual.study.probes import dynamics_error
from playvirtual.study.probes.dynamics_error import (
    CHUNK,
    Transition,
    dynamics_mse,
    mean_squared_error,
    play_transitions,
)
from tests.study.toys import CATCH, TOYS


def test_the_error_is_the_mean_over_dimensions_and_transitions() -> None:
    def encode(observations: Tensor) -> Tensor:
        return observations.reshape(len(observations), -1)[:, :2].float()

    count = 2 * CHUNK + 7  # the last chunk is not full
    pixels = np.zeros((count + 1, 1, 1, 2), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(count + 1)
    steps = [Transition(pixels[i], np.asarray(1.0), pixels[i + 1]) for i in range(count)]
    move = torch.tensor([1.0, 0.0])
    assert mean_squared_error(encode, lambda z, a: z + a[:, None] * move, steps) == 0.0
    assert mean_squared_error(encode, lambda z, a: z, steps) == 0.5  # off by 1 in one of two dimensions
    assert mean_squared_error(encode, lambda z, a: z + 3 * move, steps) == 2.0
    # Right in all transitions but the last seven, which are a chunk of their own and weigh no more than others.
    late = mean_squared_error(encode, lambda z, a: z + move * (z[:, :1] < 2 * CHUNK), steps)
    assert late == pytest.approx(7 / (2 * count))


@pytest.mark.parametrize("task", TOYS)
def test_a_runs_dynamics_model_is_probed_and_the_run_left_as_it_is(task: str, runs: dict[str, Path]) -> None:
    before = {p: p.read_bytes() for p in runs[task].rglob("*") if p.is_file() and p.name != "probes.json"}
    error = dynamics_mse(runs[task], transitions=130, device="cpu")
    assert 0.0 < error.mse < 10.0
    assert error.step == TOYS[task]["steps"]
    assert dynamics_mse(runs[task], transitions=130, device="cpu") == error
    assert dynamics_mse(runs[task], transitions=130, seed=9, device="cpu").mse != error.mse
    assert {p: p.read_bytes() for p in before} == before


def test_a_run_that_removes_its_checkpoint_meanwhile_is_probed_all_the_same(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that is still training: the probe ended as if the checkpoint were damaged."""
    monkeypatch.setattr(envs.registry, "FAMILIES", dict(envs.registry.FAMILIES))
    path = shutil.copytree(runs["toy/catch"], tmp_path / "run")
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "task": "trained/on"}))

    def make(name: str, config: Any) -> Catch:
        shutil.rmtree(path / "checkpoints")
        return Catch()

    pv.register_env("trained", make, tasks=("on",), actions="discrete")
    found = dynamics_mse(path, transitions=130, device="cpu")
    assert found == dynamics_mse(runs["toy/catch"], transitions=130, device="cpu")


def test_the_probe_asks_for_as_many_transitions_as_it_was_told(runs: dict[str, Path]) -> None:
    config = RunFolder.open(runs["toy/catch"]).config()
    rng = np.random.default_rng(0)
    found = list(play_transitions(lambda seen: rng.integers(3, size=len(seen)), config, 57, seed=1))
    assert len(found) == 57
    # Inside an episode the next observation is the one the next action is chosen for.
    joined = [np.array_equal(a.next_observation, b.observation) for a, b in pairwise(found)]
    # An episode has nine steps, of which the last ends in a terminated state and is left out: 57 = 7 · 8 + 1.
    assert [n for n, same in enumerate(joined, 1) if not same] == [8, 16, 24, 32, 40, 48, 56]
    assert all(seen[-1, -1].any() and seen[-1, :-1].any() for _, _, seen in found)  # the ball is above the paddle


def test_a_transition_is_judged_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BatchNorm's running statistics are used: how many transitions go through the model at once does not matter."""
    options = {**CATCH, "latent": 0, "channels": "4", "K": 1}
    run = pv.train("toy/catch", method="spr", run_dir=tmp_path / "run", **options).path
    whole = dynamics_mse(run, transitions=40, device="cpu").mse
    monkeypatch.setattr(dynamics_error, "CHUNK", 3)
    assert dynamics_mse(run, transitions=40, device="cpu").mse == pytest.approx(whole, rel=1e-5)


def test_what_has_no_dynamics_model_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    rl = pv.train("toy/catch", method="rl", run_dir=tmp_path / "rl", **CATCH).path
    with pytest.raises(InputError, match=r"rl' has no dynamics model \(its method is rl\)"):
        dynamics_mse(rl)
    exported = pv.export(runs["toy/catch"], tmp_path / "small")
    with pytest.raises(InputError, match="is an export, which has no dynamics model"):
        dynamics_mse(exported)
    with pytest.raises(InputError, match="transitions: 0 is not allowed"):
        dynamics_mse(runs["toy/catch"], 0)
