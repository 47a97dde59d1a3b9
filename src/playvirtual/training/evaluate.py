"""Playing episodes with a trained agent, many side by side, one network call for all that are still going."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.config import Config, EnvironmentConfig
from playvirtual.envs import Environment, make
from playvirtual.envs.stack import FrameStack
from playvirtual.method import DiscreteActions
from playvirtual.training.acting import Acting

Policy = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.generic]]  # (N, C, H, W) -> (N,) or (N, A)


class Moment(NamedTuple):
    """One step of lane 0, after it was made."""

    env: Environment
    observation: npt.NDArray[np.uint8]  # (C, H, W) that the action was chosen for
    action: npt.NDArray[np.generic]
    reward: float
    over: bool


Watcher = Callable[[Moment], None]


def epsilon_greedy(act: Acting, epsilon: float, random: np.random.Generator) -> Policy:
    """The agent as `act` has it; with chance ε a discrete action is replaced by a random one."""
    space = act.agent.actions

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        actions = act(observations)
        if epsilon > 0 and isinstance(space, DiscreteActions):
            replaced = random.random(len(actions)) < epsilon
            actions = np.where(replaced, random.integers(space.n, size=len(actions)), actions)
        return actions

    return policy


def evaluation_seeds(seed: int, step: int, episodes: int) -> list[int]:
    """One seed per episode, drawn independently of training's: of 2³¹, two are the same by chance alone."""
    state = np.random.SeedSequence([seed, step, 0xE7A1]).generate_state(episodes)
    return [int(s) & 0x7FFFFFFF for s in state]


def evaluate(
    policy: Policy, config: Config, *, episodes: int, seed: int, step: int = 0, watcher: Watcher | None = None
) -> list[float]:
    """The undiscounted, unclipped return of each of `episodes` whole episodes under the evaluation protocol."""
    lanes = min(config.evaluation.lanes, episodes)
    env = make(config.task, lanes, training=False, config=config.environment)
    try:
        seeds = evaluation_seeds(seed, step, episodes)
        return play(policy, env, config.environment, seeds, watcher)
    finally:
        env.close()


def play(
    policy: Policy, env: Environment, config: EnvironmentConfig, seeds: Sequence[int], watcher: Watcher | None = None
) -> list[float]:
    """Plays one episode per seed; every episode that is begun is finished and counts, long or short."""
    repeat = config.stack_fill == "repeat"
    stack = FrameStack(env.lanes, config.frame_stack, env.frame_shape, repeat_first=repeat)
    episode = np.full(env.lanes, -1)  # which episode a lane is playing; −1: none
    returns = np.zeros(len(seeds))
    started = 0

    def start(lanes: Sequence[int]) -> None:
        nonlocal started
        lanes = list(lanes)[: len(seeds) - started]
        if not lanes:
            return
        numbers = range(started, started + len(lanes))
        frames = env.reset(lanes, [seeds[i] for i in numbers])
        stack.clear(lanes)
        stack.push(frames, lanes)
        episode[lanes] = list(numbers)
        started += len(lanes)

    start(range(env.lanes))
    actions: npt.NDArray[np.generic] | None = None
    while (live := episode >= 0).any():
        chosen = policy(stack.observations[live])
        seen = stack.observations[0].copy() if watcher is not None else None
        if actions is None:
            actions = np.zeros((env.lanes, *chosen.shape[1:]), chosen.dtype)
        actions[live] = chosen
        result = env.step(actions)
        returns[episode[live]] += result.rewards[live]
        stack.push(result.frames)
        if watcher is not None and seen is not None and live[0]:
            watcher(Moment(env, seen, actions[0].copy(), float(result.rewards[0]), bool(result.over[0])))
        ended = live & result.over
        episode[ended] = -1
        start(np.flatnonzero(ended).tolist())
    return [float(r) for r in returns]
