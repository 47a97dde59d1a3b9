"""What the agent of a run costs: parameters and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from playvirtual.agents.sizes import released_count
from playvirtual.errors import InputError
from playvirtual.training import journals, kept_agent
from playvirtual.training.checkpoint import newest_sound
from playvirtual.training.factory import make_agent
from playvirtual.training.run_folder import RunFolder

COUNTED_IN_PAPER = (
    "what the released code declares: for SAC target networks too and a shared encoder each time it appears, for both "
    "agents parts that nothing reads"
)
SMALLER_HEADS = "there projection_hidden is 100, as in preset reference"


class Size(NamedTuple):
    """Parameters, counted in two ways."""

    trainable: int  # each once
    as_in_paper: int | None  # None where the released code has no such networks


def complexity(run: str | Path) -> dict[str, Any]:
    """Parameters, and the seconds that 1000 updates took as the run itself measured them."""
    folder = RunFolder.open(run)
    if folder.is_export:
        raise InputError(f"run: {str(run)!r} is an export, which has no record of training; allowed: the run itself")
    path = newest_sound(folder.path, [kept_agent.RECORD])
    size = _size(folder, path)
    return {
        "step": kept_agent.step_of(path),
        "parameters": size.trainable,
        "parameters_as_in_paper": size.as_in_paper,
        "seconds_per_1000_updates": _update_seconds(folder),
    }


def parameters(run: str | Path) -> Size:
    """The parameters of a run's agent, which is built anew as its newest checkpoint describes it."""
    folder = RunFolder.open(run)
    return _size(folder, newest_sound(folder.path, [kept_agent.RECORD]))


def _size(folder: RunFolder, path: Path) -> Size:
    shape, actions = kept_agent.read_shapes(path)
    agent = make_agent(folder.config(), shape, actions, torch.device("cpu"), seed=0)
    return Size(agent.parameter_count(), released_count(agent))


def _update_seconds(folder: RunFolder) -> float | None:
    """Host time spent in updates at the last line of metrics; None before the first update."""
    updates = {int(line["step"]): int(line["updates"]) for line in journals.lines(folder.path, "metrics")}
    spent = {int(line["step"]): float(line.get("update", 0.0)) for line in journals.lines(folder.path, "timing")}
    both = sorted(step for step in updates.keys() & spent.keys() if updates[step])
    return 1000 * spent[both[-1]] / updates[both[-1]] if both else None
