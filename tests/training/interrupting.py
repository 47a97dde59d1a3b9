"""Runs of toy/catch that are interrupted on their way, and a comparison with the run that was not."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint
from playvirtual.training.runner import run

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 160,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 4,
    "eval_every": 0,
    "log_every": 30,
    "checkpoint_every": 40,
}
FLAGS = [word for name, value in CATCH.items() for word in ("--" + name.replace("_", "-"), str(value))]


class At:
    """A display that calls a function once so many steps are done."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.at, self.act = step, act

    def begin(self, done: int, pace: object = None) -> None:
        pass

    def step(self, done: int, note: str) -> None:
        if done >= self.at:
            self.at = sys.maxsize
            self.act()

    def close(self) -> None:
        pass


def train_until(path: Path, step: int, act: Callable[[], object], **options: Any) -> pv.Run:
    """Starts or resumes a run with a checkpoint every 40 steps and calls `act` after `step` steps."""
    return run(pv.build("toy/catch", **{**CATCH, **options}), path, At(step, act), resume=True)


def stopped(path: Path, step: int, **options: Any) -> None:
    """A run that a SIGTERM stopped after step + 1 steps."""
    with pytest.raises(pv.Interrupted):
        train_until(path, step, lambda: signal.raise_signal(signal.SIGTERM), **options)


def interrupted(task: str, options: dict[str, Any], path: Path, step: int) -> None:
    """Trains until a SIGINT after `step` steps, which leaves a checkpoint one step later."""
    config = pv.build(task, **{k: v for k, v in options.items() if k != "quiet"})
    with pytest.raises(pv.Interrupted, match=f"to resume: playvirtual train --resume {path}") as caught:
        run(config, path, At(step, lambda: signal.raise_signal(signal.SIGINT)))
    assert caught.value.exit_code == 130


def finish_and_compare(path: Path, whole: Path) -> None:
    """Resumes a run to its end, which is that of the uninterrupted one."""
    pv.resume(path, quiet=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()
    weights = [checkpoint.newest(run) / "weights.safetensors" for run in (path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
