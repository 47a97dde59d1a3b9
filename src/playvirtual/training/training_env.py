"""The environment of training: one env that starts its next episode by itself, and can be restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from playvirtual import envs, files
from playvirtual.config.schema import Config
from playvirtual.envs.env import ResetsInBackground, VectorStep
from playvirtual.envs.vector import FrameStack
from playvirtual.errors import InputError


class TrainingEnv:
    """One env of the task with the stack of frames that the agent sees, reset at the end of each episode.

    The seed of the run and the number of an episode decide how the episode is seeded.
    """

    def __init__(self, config: Config) -> None:
        self._seed = config.seed
        self.vector_env = envs.make(config.task, 1, training=True, config=config.environment)
        self.frame_shape, self.action_space = self.vector_env.frame_shape, self.vector_env.action_space
        self.native_action_space = getattr(self.vector_env, "native_action_space", self.action_space)
        self.observed_parts = getattr(self.vector_env, "observed_parts", None)
        depth, repeat_first = config.environment.frame_stack, config.environment.stack_fill == "repeat"
        self._stack = FrameStack(1, depth, self.frame_shape, repeat_first=repeat_first)
        channels, height, width = self.frame_shape
        if height != width:
            raise InputError(f"task: {config.task!r} shows frames of {height} × {width} pixels; allowed: square ones")
        self.observation_shape = (channels * depth, height, width)
        self.num_episodes = 0  # started
        self.episode_return = 0.0  # of the present episode so far, unclipped
        self._actions: list[npt.NDArray[np.generic]] = []  # of the present episode
        self.reset()

    @property
    def observations(self) -> npt.NDArray[np.uint8]:
        """(1, C, H, W): what the agent sees now."""
        return self._stack.observations

    def episode_seed(self, episode: int) -> int:
        """The seed of an episode, which depends on the run's seed and the episode's number alone."""
        # The last number keeps [seed, 0], which NumPy takes for `seed` alone, apart from the run's other streams.
        return int(np.random.SeedSequence([self._seed, episode, 0x6A3E]).generate_state(1)[0]) & 0x7FFFFFFF

    def reset(self) -> None:
        """Starts the next episode, and prepares the one after it in the background where that is slow."""
        frames = self.vector_env.reset([0], [self.episode_seed(self.num_episodes)])
        self.num_episodes += 1
        if isinstance(self.vector_env, ResetsInBackground):
            self.vector_env.prepare_reset(self.episode_seed(self.num_episodes))
        self.episode_return = 0.0
        self._actions = []
        self._stack.clear([0])
        self._stack.push(frames)
        self.frame: npt.NDArray[np.uint8] = frames[0]

    def step(self, action: npt.NDArray[np.generic]) -> VectorStep:
        """Takes one action, (1,) or (1, A); the caller resets after the end of an episode."""
        result = self.vector_env.step(action)
        self._actions.append(action[0])
        self.episode_return += float(result.rewards[0])
        if result.terminated[0]:  # also a lost life: the game continues, the agent's episode does not
            self._stack.clear([0])
        self._stack.push(result.frames)
        self.frame = result.frames[0]
        return result

    def state_dict(self) -> dict[str, Any]:
        """The episode's number and actions, from which it can be replayed, and the observation they lead to."""
        actions = np.stack(self._actions) if self._actions else np.zeros(0)
        return {
            "num_episodes": self.num_episodes,
            "actions": torch.from_numpy(actions),
            "observation": torch.from_numpy(self.observations.copy()),
        }

    def checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What `load_state_dict` takes, of a state that may be forged; raises a ValueError if it is none."""
        episodes, actions, observation = (state[name] for name in ("num_episodes", "actions", "observation"))
        files.as_whole(episodes, "num_episodes", 1)
        space = self.action_space
        discrete = isinstance(space, spaces.Discrete)
        fits = isinstance(actions, torch.Tensor) and (
            len(actions) == 0
            or (discrete and actions.dtype == torch.int64 and actions.ndim == 1)
            or (not discrete and actions.dtype == torch.float32 and actions.shape[1:] == space.shape)
        )
        if fits and isinstance(space, spaces.Discrete) and len(actions):
            fits = bool(((actions >= 0) & (actions < int(space.n))).all())
        if not fits:
            raise ValueError(f"actions: not a list of actions in {space}")
        if observation.dtype != torch.uint8 or tuple(observation.shape) != (1, *self.observation_shape):
            raise ValueError(f"observation: not uint8 of shape {(1, *self.observation_shape)}")
        return {"num_episodes": episodes, "actions": actions, "observation": observation}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Replays the present episode, whose seed and actions decide it; no emulator state is stored.

        Returns whether the observation is the stored one. It is not where something beside seed and actions decides it.
        """
        self.num_episodes = state["num_episodes"] - 1
        self.reset()
        for action in state["actions"].numpy():
            self.step(action[None])
        return np.array_equal(self.observations, state["observation"].numpy())

    def close(self) -> None:
        """Closes the environment."""
        self.vector_env.close()
