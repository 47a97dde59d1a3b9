"""Action spaces as records that JSON can hold: in checkpoints, and between the processes of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from playvirtual.envs.protocol import ActionSpace


def describe(space: ActionSpace) -> dict[str, Any]:
    """The number of actions, or the bounds of a box."""
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n)}
    return {"low": space.low.tolist(), "high": space.high.tolist()}


def from_description(record: Mapping[str, Any]) -> ActionSpace:
    """The space that `describe` described."""
    if "n" in record:
        return spaces.Discrete(int(record["n"]))
    low, high = (np.asarray(record[key], dtype=np.float32) for key in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)
