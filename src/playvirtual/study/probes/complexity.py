"""The cost of a run's agent: its parameters and the time of its updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from playvirtual.agents.agent import CountsReleasedParameters, make_agent, num_trainable_parameters
from playvirtual.errors import InputError
from playvirtual.runs import jsonl
from playvirtual.runs.agents import RECORD, read_shapes, read_step
from playvirtual.runs.checkpoint import latest_valid
from playvirtual.runs.folder import RunFolder

COUNTED_IN_PAPER = (
    "what the released code declares: for SAC target networks too and a shared encoder each time it appears, for both "
    "agents parts that nothing reads"
)


class Size(NamedTuple):
    """The parameters of an agent, counted in two ways."""

    trainable: int  # each counted once
    as_in_paper: int | None  # None where the released code has no such networks


def complexity(run: str | Path) -> dict[str, Any]:
    """The record of this probe: parameters, and the seconds that 1000 updates took as the run's logs have them."""
    folder = RunFolder.open(run)
    if folder.is_export:
        raise InputError(f"run: {str(run)!r} is an export, which has no record of training; allowed: the run itself")
    path = latest_valid(folder.path, [RECORD])
    size = _size(folder, path)
    return {
        "step": read_step(path),
        "parameters": size.trainable,
        "parameters_as_in_paper": size.as_in_paper,
        "seconds_per_1000_updates": _update_seconds(folder),
    }


def parameters(run: str | Path) -> Size:
    """The parameters of a run's agent, which is built as its latest valid checkpoint describes it."""
    folder = RunFolder.open(run)
    return _size(folder, latest_valid(folder.path, [RECORD]))


def _size(folder: RunFolder, path: Path) -> Size:
    shape, actions = read_shapes(path)
    agent = make_agent(folder.config(), shape, actions, torch.device("cpu"), seed=0)
    released = agent.released_parameter_count() if isinstance(agent, CountsReleasedParameters) else None
    return Size(num_trainable_parameters(agent), released)


def _update_seconds(folder: RunFolder) -> float | None:
    """Seconds of the host in 1000 updates, from the last line that both logs have; None before the first update."""
    updates = {line["step"]: int(line["updates"]) for line in jsonl.read(folder.path, "metrics", ["updates"])[0]}
    spent = {line["step"]: float(line["update"]) for line in jsonl.read(folder.path, "timing", ["update"])[0]}
    both = sorted(step for step in updates.keys() & spent.keys() if updates[step])
    return 1000 * spent[both[-1]] / updates[both[-1]] if both else None
