"""The agent in a checkpoint or an export: what acting needs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from playvirtual.envs.action_spaces import describe, from_description
from playvirtual.envs.protocol import ActionSpace
from playvirtual.training.checkpoint import Content, read, read_tensors
from playvirtual.training.pack import to_bytes

WEIGHTS, RECORD = "weights.safetensors", "agent.json"
FILES = (WEIGHTS, RECORD)


def contents(
    step: int, weights: Mapping[str, Tensor], observation_shape: tuple[int, ...], actions: ActionSpace
) -> dict[str, Content]:
    """What `pv.load` needs: the weights for acting and the shapes they belong to."""
    record = {"step": step, "observation_shape": list(observation_shape), "actions": describe(actions)}
    return {WEIGHTS: to_bytes(dict(weights)), RECORD: (json.dumps(record, indent=2) + "\n").encode()}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights for acting."""
    return read_tensors(path, WEIGHTS)


def read_shapes(path: Path) -> tuple[tuple[int, int, int], ActionSpace]:
    """Observation shape and action space, the weights unread."""
    record = _record(path)
    c, h, w = record["observation_shape"]
    return (c, h, w), from_description(record["actions"])


def step_of(path: Path) -> int:
    """The step, in the configuration's unit, at which the agent was kept."""
    return int(_record(path)["step"])


def _record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(read(path, RECORD))
    return record
