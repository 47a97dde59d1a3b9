"""What the agent of a run costs: parameters and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from playvirtual.training import journals, kept_agent
from playvirtual.training.checkpoint import newest_sound
from playvirtual.training.factory import make_agent
from playvirtual.training.run_folder import RunFolder


def complexity(run: str | Path) -> dict[str, Any]:
    """Trainable parameters, and the seconds that 1000 updates took as the run itself measured them."""
    folder = RunFolder.open(run)
    path = newest_sound(folder.path, [kept_agent.RECORD])
    return {
        "step": kept_agent.step_of(path),
        "parameters": _parameters(folder, path),
        "seconds_per_1000_updates": _update_seconds(folder),
    }


def parameters(run: str | Path) -> int:
    """The trainable parameters of a run's agent, which is built anew as its newest checkpoint describes it."""
    folder = RunFolder.open(run)
    return _parameters(folder, newest_sound(folder.path, [kept_agent.RECORD]))


def _parameters(folder: RunFolder, path: Path) -> int:
    shape, actions = kept_agent.read_shapes(path)
    return make_agent(folder.config(), shape, actions, torch.device("cpu"), seed=0).parameter_count()


def _update_seconds(folder: RunFolder) -> float | None:
    """Host time spent in updates at the last line of metrics; None before the first update."""
    updates = {int(line["step"]): int(line["updates"]) for line in journals.lines(folder.path, "metrics")}
    spent = {int(line["step"]): float(line.get("update", 0.0)) for line in journals.lines(folder.path, "timing")}
    both = sorted(step for step in updates.keys() & spent.keys() if updates[step])
    return 1000 * spent[both[-1]] / updates[both[-1]] if both else None
