"""A task whose episodes are written down beforehand, and which remembers what it was asked and what it answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from playvirtual.envs import registry
from playvirtual.envs.env import EnvironmentConfig, VectorStep
from playvirtual.envs.registry import EnvFamily

SHAPE = (1, 6, 6)
REWARDS = (-3.0, -0.5, 0.0, 0.25, 2.0)


class Episode(NamedTuple):
    """What a seed decides: rewards, the steps that cost a life, and how the last step ends."""

    rewards: list[float]
    lost_lives: list[bool]
    terminates: bool

    @classmethod
    def of(cls, seed: int) -> Episode:
        random = np.random.default_rng(seed)
        length = int(random.integers(2, 9))
        rewards = random.choice(REWARDS, length).tolist()
        return cls(rewards, (random.random(length) < 0.15).tolist(), bool(random.random() < 0.5))


def frame_of(seed: int, time: int) -> npt.NDArray[np.uint8]:
    """Noise that no other time of any episode shows."""
    return np.random.default_rng([seed, time]).integers(256, size=SHAPE, dtype=np.uint8)


class Moment(NamedTuple):
    """A reset, with no action, or a step of one environment."""

    env: int
    seed: int
    frame: npt.NDArray[np.uint8]
    action: npt.NDArray[np.generic] | None = None
    reward: float = 0.0
    terminated: bool = False
    done: bool = False


class ScriptedEnv:
    """N environments; lost lives are told in training alone, as by Atari's."""

    frame_shape = SHAPE

    def __init__(self, name: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> None:
        self.num_envs, self.training, self.config = num_envs, training, config
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(3) if name == "discrete" else box
        self.moments: list[Moment] = []
        self._now = [(-1, 0, True)] * num_envs  # seed, time, done

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> npt.NDArray[np.uint8]:
        frames = [frame_of(seed, 0) for seed in seeds]
        for index, seed, frame in zip(indices, seeds, frames, strict=True):
            self._now[index] = (seed, 0, False)
            self.moments.append(Moment(index, seed, frame))
        return np.stack(frames)

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        chosen = range(self.num_envs) if indices is None else indices
        rows = [self._step_one(index, action) for index, action in zip(chosen, actions, strict=True)]
        frames, rewards, terminated, done = zip(*rows, strict=True)
        return VectorStep(np.stack(frames), np.array(rewards, np.float32), np.array(terminated), np.array(done))

    def _step_one(self, index: int, action: npt.NDArray[np.generic]) -> tuple[Any, float, bool, bool]:
        seed, time, done = self._now[index]
        if done:
            return np.zeros(SHAPE, np.uint8), 0.0, False, True
        episode, frame = Episode.of(seed), frame_of(seed, time + 1)
        last = time + 1 == len(episode.rewards)
        lost = self.training and self.config.life_loss_is_terminal and episode.lost_lives[time]
        terminated = episode.terminates if last else lost
        self._now[index] = (seed, time + 1, last)
        self.moments.append(Moment(index, seed, frame, np.array(action), episode.rewards[time], terminated, last))
        return frame, episode.rewards[time], terminated, last

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        return np.zeros((6, 6, 3), np.uint8)

    def close(self) -> None:
        pass


@contextmanager
def scripted_tasks() -> Iterator[list[ScriptedEnv]]:
    """Makes `scripted/discrete` and `scripted/continuous` tasks; gives the list of all environments made of them."""
    made: list[ScriptedEnv] = []

    def make(name: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> ScriptedEnv:
        made.append(ScriptedEnv(name, num_envs, training=training, config=config))
        return made[-1]

    make_vector: Callable[..., Any] = make
    family = EnvFamily(
        tasks=("discrete", "continuous"),
        make_vector=make_vector,
        actions={"discrete": "discrete", "continuous": "continuous"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.FAMILIES, "scripted", family)
        yield made


# The smallest networks, for environments of any kind.
TINY: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "image_size": 6,
    "grayscale": True,
    "channels": "2",
    "kernel_sizes": "3",
    "strides": "2",
    "latent": 4,
    "hidden": 4,
    "dynamics_hidden": 4,
    "M": 2,
    "batch_size": 3,
    "eval_episodes": 4,
    "eval_envs": 3,
    "eval_every": 0,
}
DISCRETE: dict[str, Any] = {**TINY, "atoms": 5, "shift_pad": 1, "life_loss_is_terminal": True}
CONTINUOUS: dict[str, Any] = {**TINY, "auxiliary_batch_size": 2, "crop_size": 5, "projection_hidden": 4}
