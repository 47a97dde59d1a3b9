"""Evaluation: whole episodes of a policy in many envs, with one network call for all envs that are still playing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from playvirtual import published
from playvirtual.config.schema import Config
from playvirtual.device import check_memory
from playvirtual.envs import VectorEnv, make
from playvirtual.envs.async_vector import AsyncVectorEnv
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.vector import FrameStack
from playvirtual.method import DiscreteActions
from playvirtual.training.policy import AsyncPolicy

ENV_BYTES, EPISODE_BYTES = 4096, 48  # that an environment, and an episode's seed and return, take at least

Policy = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.generic]]  # (N, C, H, W) -> (N,) or (N, A)


class WatchedStep(NamedTuple):
    """One step of the first env, after it was made."""

    env: VectorEnv
    observation: npt.NDArray[np.uint8]  # (C, H, W) that the action was chosen for
    action: npt.NDArray[np.generic]
    reward: float
    done: bool


Watcher = Callable[[WatchedStep], None]
Progress = Callable[[int, int], None]  # the episodes that have ended, and the steps of all envs together


def epsilon_greedy(policy: AsyncPolicy, epsilon: float, random: np.random.Generator) -> Policy:
    """The policy with each discrete action replaced by a random one with probability ε."""
    space = policy.agent.action_space

    def act(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        actions = policy(observations)
        if epsilon > 0 and isinstance(space, DiscreteActions):
            replaced = random.random(len(actions)) < epsilon
            actions = np.where(replaced, random.integers(space.n, size=len(actions)), actions)
        return actions

    return act


def evaluation_policy(policy: AsyncPolicy, config: Config, step: int) -> Policy:
    """The policy as a run evaluates it at `step`; the run's seed and the step decide its random actions."""
    return epsilon_greedy(policy, config.evaluation.eval_epsilon, np.random.default_rng([config.seed, step]))


def evaluation_seeds(seed: int, step: int, episodes: int) -> list[int]:
    """One seed per episode, drawn independently of those of training: 31 bits, so two are equal by chance alone."""
    state = np.random.SeedSequence([seed, step, 0xE7A1]).generate_state(episodes)
    return [int(s) & 0x7FFFFFFF for s in state]


class Evaluator:
    """Scores policies under a run's evaluation protocol.

    Environments in worker processes stay for the next evaluation: a process of DMControl takes seconds to start. Others
    are made anew, so that nothing which an environment's `reset` forgets passes from one evaluation to the next.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._kept: AsyncVectorEnv | None = None

    def evaluate(
        self,
        policy: Policy,
        *,
        episodes: int,
        seed: int,
        step: int = 0,
        watcher: Watcher | None = None,
        progress: Progress | None = None,
    ) -> list[float]:
        """The undiscounted, unclipped return of each of `episodes` whole episodes."""
        c = self._config
        num_envs = min(c.evaluation.eval_envs, episodes)
        frames = 2 * c.environment.frame_stack * c.environment.image_size**2
        needs = {"environments": num_envs * (ENV_BYTES + frames), "episodes": episodes * EPISODE_BYTES}
        check_memory(torch.device("cpu"), needs)
        if self._kept is not None and not (self._kept.num_envs == num_envs and self._kept.alive):
            self.close()
        env: VectorEnv = self._kept or make(c.task, num_envs, training=False, config=c.environment)
        self._kept = None  # after an error, or a signal amid a step, it could not be used again
        try:
            seeds = evaluation_seeds(seed, step, episodes)
            returns = play_episodes(policy, env, c.environment, seeds, watcher, progress)
        except BaseException:
            env.close()
            raise
        if isinstance(env, AsyncVectorEnv):
            self._kept = env
        else:
            env.close()
        return returns

    def close(self) -> None:
        """Closes the environments that are kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def evaluate(
    policy: Policy,
    config: Config,
    *,
    episodes: int,
    seed: int,
    step: int = 0,
    watcher: Watcher | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """The undiscounted, unclipped return of each of `episodes` whole episodes under the evaluation protocol."""
    with closing(Evaluator(config)) as evaluator:
        return evaluator.evaluate(policy, episodes=episodes, seed=seed, step=step, watcher=watcher, progress=progress)


def play_episodes(
    policy: Policy,
    env: VectorEnv,
    config: EnvironmentConfig,
    seeds: Sequence[int],
    watcher: Watcher | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Plays one episode per seed and returns their returns; every episode that starts is finished and counts."""
    num_envs, repeat_first = env.num_envs, config.stack_fill == "repeat"
    stack = FrameStack(num_envs, config.frame_stack, env.frame_shape, repeat_first=repeat_first)
    episode = np.full(num_envs, -1)  # the episode that each env is playing; −1: none
    returns = np.zeros(len(seeds))
    started = steps = 0

    def start_episodes(idle: Sequence[int]) -> None:
        """Starts the next episodes in envs that play none, as far as seeds are left."""
        nonlocal started
        indices = list(idle)[: len(seeds) - started]
        if not indices:
            return
        numbers = range(started, started + len(indices))
        frames = env.reset(indices, [seeds[i] for i in numbers])
        stack.clear(indices)
        stack.push(frames, indices)
        episode[indices] = list(numbers)
        started += len(indices)

    start_episodes(range(num_envs))
    while playing := np.flatnonzero(episode >= 0).tolist():  # only these are looked at, moved and drawn
        observations = stack.observations[playing]
        actions = policy(observations)
        result = env.step(actions, playing)
        returns[episode[playing]] += result.rewards
        stack.push(result.frames, playing)
        if watcher is not None and playing[0] == 0:
            watcher(
                WatchedStep(env, observations[0], actions[0].copy(), float(result.rewards[0]), bool(result.done[0]))
            )
        ended = [index for index, done in zip(playing, result.done, strict=True) if done]
        episode[ended] = -1
        start_episodes(ended)
        if progress is not None:
            steps += len(playing)
            progress(started - int(np.count_nonzero(episode >= 0)), steps)
    return [float(r) for r in returns]


def evaluation_line(config: Config, step: int, returns: Sequence[float]) -> dict[str, Any]:
    """What evaluations.jsonl says of an evaluation: mean, spread, every return and, where there is one, the HNS."""
    mean = float(np.mean(returns))
    line: dict[str, Any] = {"step": step, "mean": mean, "std": float(np.std(returns))}
    family, _, game = config.task.partition("/")
    if family == "atari" and game in published.human():
        line["hns"] = float(published.hns(game, mean))
    return line | {"returns": list(returns)}
