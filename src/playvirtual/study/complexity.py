"""How large the networks of each setting are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from playvirtual import published
from playvirtual.errors import InputError
from playvirtual.study.records import Record
from playvirtual.study.sections import Section
from playvirtual.study.tables import Table
from playvirtual.training.factory import ActionSpace, make_agent
from playvirtual.training.run_folder import RunFolder

COUNTED = 12  # settings per section whose networks are built; building DMControl's takes a second each


def complexity_table(sections: Sequence[Section]) -> Table | None:
    """Trainable parameters by task and setting, for the first task of each section, beside the paper's."""
    paper = {(a.task, a.method): a.value for a in published.analyses() if a.analysis == "parameters_millions"}
    rows = []
    for section in sections:
        for setting, tasks in list(section.runs.items())[:COUNTED]:
            task = next((t for t in section.tasks if t in tasks), "")
            count = parameters(next(iter(tasks[task].values()))) if task else None
            if count is not None:
                printed = paper.get((task.partition("/")[2], setting.name))
                rows.append((task, setting.name, f"{count:,}", "—" if printed is None else f"{printed:.2f} M"))
    columns = ("task", "setting", "trainable parameters", "paper")
    note = "The paper counts what its code declares, parts that nothing reads included."
    return Table("parameters", "Parameters", columns, rows, quiet={3}, note=note) if rows else None


def parameters(record: Record) -> int | None:
    """The trainable parameters of a run's agent, which is built anew; None where its checkpoint is gone."""
    try:
        shape, actions = _shapes(record.path)
        config = RunFolder.open(record.path).config()
        agent = make_agent(config, shape, actions, torch.device("cpu"), seed=0)
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return None
    return agent.parameter_count()


def _shapes(run: Path) -> tuple[tuple[int, int, int], ActionSpace]:
    """Observation shape and action space from the newest checkpoint's description."""
    described = sorted((run / "checkpoints").glob("step-*/agent.json"))
    if not described:
        raise FileNotFoundError(run / "checkpoints")
    record = json.loads(described[-1].read_text())
    c, h, w = map(int, record["observation_shape"])
    actions = record["actions"]
    if "n" in actions:
        return (c, h, w), spaces.Discrete(int(actions["n"]))
    low, high = (np.asarray(actions[key], dtype=np.float32) for key in ("low", "high"))
    return (c, h, w), spaces.Box(low, high)
