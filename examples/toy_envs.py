"""The package's two toys as Gymnasium environments: Catch-v0 (discrete actions) and Reach-v0 (continuous actions)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from playvirtual.envs.families.toy import Catch, Reach


class ToyEnv(gym.Env[np.ndarray, Any]):
    """Images (C, H, W) of uint8; an action lasts `repeat` frames; a seed for `reset` decides all later episodes."""

    def __init__(self, game: Catch | Reach, repeat: int = 1) -> None:
        self.game, self.repeat = game, repeat
        self.observation_space = gym.spaces.Box(0, 255, game.frame_shape, np.uint8)
        self.action_space = game.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.game.reset(int(self.np_random.integers(2**31)))
        return self.game.frame(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward, done = 0.0, False
        for _ in range(self.repeat):
            if not done:
                step = self.game.step(np.asarray(action))
                reward, done = reward + step.reward, step.done
        return self.game.frame(), reward, step.terminated, step.done and not step.terminated, {}


gym.register("Catch-v0", lambda: ToyEnv(Catch()))
gym.register("Reach-v0", lambda: ToyEnv(Reach(12, grayscale=False), repeat=4))
