"""Action spaces come back from JSON as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from playvirtual.envs.env import describe_space, space_from_description

BOUNDS = np.array([0.1, 1 / 3, 2.5], np.float32)  # none of them short in decimals


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(18), spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Box(-BOUNDS, BOUNDS)],
    ids=str,
)
def test_a_described_space_is_the_same_space(space: spaces.Discrete | spaces.Box) -> None:
    assert space_from_description(json.loads(json.dumps(describe_space(space)))) == space
