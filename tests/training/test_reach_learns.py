"""The continuous agent end to end: it learns toy/reach, repeats itself, and runs on a real DMControl task."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.training.runner import evaluation_due


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_reach_is_learned(tmp_path: Path) -> None:
    run = pv.train("toy/reach", seed=1, steps=1_100, device="cpu", run_dir=tmp_path / "run", quiet=True)
    untrained = lines(run.path, "evaluations")[0]["mean"]  # after random play and the first update
    assert untrained < 15  # random play scores about 9
    assert run.score > 24
    # The policy is its weights: what was saved scores the same.
    assert pv.evaluate(run.path, device="cpu") == pytest.approx(run.returns, abs=1e-4)


@pytest.mark.slow
def test_same_seed_same_metrics(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "steps": 80,
        "learning_starts": 40,
        "eval_every": 40,
        "eval_episodes": 2,
        "log_every": 20,
    }
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        pv.train("toy/reach", seed=5, device="cpu", run_dir=path, quiet=True, **options)
    one, two = ((path / "metrics.jsonl").read_text() for path in paths)
    assert one == two
    assert lines(paths[0], "evaluations") == lines(paths[1], "evaluations")
    last = lines(paths[0], "metrics")[-1]
    assert last["updates"] == 41
    expected = {"critic", "actor", "alpha", "pred", "cyc"}
    assert expected <= {name.removeprefix("loss_") for name in last}
    assert {"q", "entropy", "alpha", "grad_norm_critic", "grad_norm_auxiliary"} <= last.keys()


@pytest.mark.parametrize("method", ["rl", "spr-bdm", "playvirtual-perturbed", "playvirtual-every-step"])
def test_metrics_of_every_method_are_finite(tmp_path: Path, method: str) -> None:
    options: dict[str, Any] = {"steps": 30, "learning_starts": 26, "eval_every": 0, "eval_episodes": 1}
    run = pv.train("toy/reach", method=method, device="cpu", run_dir=tmp_path / "run", quiet=True, **options)
    assert np.isfinite([v for v in lines(run.path, "metrics")[-1].values() if v is not None]).all()


def test_evaluations_are_due_in_the_step_unit() -> None:
    config = build("dmc/cartpole-swingup")
    assert config.steps / config.environment.action_repeat == 12_500  # agent steps of DMControl-100k
    config = build("toy/reach", step_unit="environment", action_repeat=3, eval_every=10)
    due = [step * config.frames_per_step for step in range(1, 12) if evaluation_due(config, step)]
    assert due == [12, 21, 30]  # the first steps at or past 10, 20, 30


SMALL: dict[str, Any] = {
    "image_size": 44,
    "crop_size": 36,
    "channels": (8, 8),
    "kernel_sizes": (3, 3),
    "strides": (2, 2),
    "hidden": 32,
    "dynamics_hidden": 32,
    "projection_hidden": 32,
    "batch_size": 16,
    "auxiliary_batch_size": 8,
}


@pytest.mark.slow
def test_a_run_of_cartpole_counts_frames(tmp_path: Path) -> None:
    pytest.importorskip("dm_control")
    schedule = {"steps": 2_000, "learning_starts": 150, "eval_every": 1_600, "eval_episodes": 1, "log_every": 50}
    run = pv.train(
        "dmc/cartpole-swingup", seed=1, device="cpu", run_dir=tmp_path / "run", quiet=True, **SMALL, **schedule
    )
    metrics, evaluations = lines(run.path, "metrics"), lines(run.path, "evaluations")
    assert [line["step"] for line in metrics] == [400, 800, 1200, 1600, 2000]  # 50 agent steps are 400 frames
    assert [line["step"] for line in evaluations] == [1600, 2000]
    assert metrics[-1]["updates"] == 101  # one per agent step from the 150th of 250
    assert metrics[-1]["episodes"] == 2  # 1000 frames each
    assert 0 < metrics[-1]["lambda_cyc"] < 0.01  # 2,000 of 50,000 environment steps
    assert all(0 <= r <= 1000 for r in run.returns)
    assert np.isfinite(metrics[-1]["loss_critic"])
