"""Agents learn: thresholds that an untrained agent and random play fail by far."""

from pathlib import Path

import numpy as np
import pytest

import playvirtual as pv
from playvirtual.training.evaluation import evaluate


def random_score(task: str, actions: int, episodes: int) -> float:
    random = np.random.default_rng(0)
    config = pv.build(task)
    return float(np.mean(evaluate(lambda o: random.integers(actions, size=len(o)), config, episodes=episodes, seed=0)))


@pytest.mark.slow(seconds=40)
def test_playvirtual_learns_catch(tmp_path: Path) -> None:
    """Returns lie in [−1, 1]; random play catches one ball in ten or so."""
    assert random_score("toy/catch", 3, 300) < -0.5
    run = pv.train("toy/catch", seed=1, steps=4_500, eval_every=0, device="cpu", run_dir=tmp_path / "run", quiet=True)
    assert run.score >= 0.8


@pytest.mark.long
@pytest.mark.slow(seconds=30)
def test_playvirtual_learns_minatar_breakout(tmp_path: Path) -> None:
    assert random_score("minatar/breakout", 3, 100) < 1.0
    run = pv.train(
        "minatar/breakout",
        seed=1,
        steps=8_000,
        i_end=4_000,
        device="cpu",
        run_dir=tmp_path / "run",
        quiet=True,
    )
    assert run.score >= 2.5
