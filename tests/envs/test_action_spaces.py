"""Action spaces come back from JSON as they were; actions in [−1, 1] reach all of an environment's own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from playvirtual.envs.env import describe_space, space_from_description, to_native

BOUNDS = np.array([0.1, 1 / 3, 2.5], np.float32)  # none of them short in decimals


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(18), spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Box(-BOUNDS, BOUNDS)],
    ids=str,
)
def test_a_described_space_is_the_same_space(space: spaces.Discrete | spaces.Box) -> None:
    assert space_from_description(json.loads(json.dumps(describe_space(space)))) == space


def test_every_whole_number_of_a_box_is_chosen_by_as_much_of_the_range_as_it_is_near() -> None:
    """0 to 3 lie at −1, −1/3, 1/3 and 1, and each takes what is nearest to it: the outer ones half as much."""
    box = spaces.Box(0, 3, (1,), np.int32)
    actions = np.linspace(-1, 1, 3_001, dtype=np.float32)[:-1, None] + np.float32(1 / 3_000)
    chosen = [int(to_native(action, box)[0]) for action in actions]
    assert np.bincount(chosen).tolist() == pytest.approx([500, 1_000, 1_000, 500], abs=1)
