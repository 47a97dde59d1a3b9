"""How the environments under test are set up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from playvirtual.envs.env import EnvironmentConfig

Settings = Callable[..., EnvironmentConfig]


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Atari's settings with some of them changed."""

    def build(**changes: Any) -> EnvironmentConfig:
        atari = {
            "frame_stack": 4,
            "stack_fill": "zeros",
            "image_size": 84,
            "grayscale": True,
            "action_repeat": 4,
            "max_episode_frames": 0,
            "life_loss_is_terminal": True,
            "reward_clip": 1.0,
        }
        return EnvironmentConfig(**(atari | changes))

    return build
