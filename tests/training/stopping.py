"""Runs that are stopped on their way, as a person would stop them."""

import signal
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.training.session import run


class StopAt:
    """A display that sends this process the signal a person would, once so many steps are done."""

    def __init__(self, step: int) -> None:
        self.at = step

    def begin(self, done: int) -> None:
        pass

    def step(self, done: int, note: str) -> None:
        if done >= self.at:
            signal.raise_signal(signal.SIGINT)
            self.at = 10**9

    def close(self) -> None:
        pass


def interrupted(task: str, options: dict[str, Any], path: Path, step: int) -> None:
    """Trains until a SIGINT after `step` steps, which leaves a checkpoint one step later."""
    config = pv.build(task, **{k: v for k, v in options.items() if k != "quiet"})
    with pytest.raises(pv.Interrupted, match=f"to go on: playvirtual train --resume {path}") as caught:
        run(config, path, StopAt(step))
    assert caught.value.exit_code == 130
