"""What tasks do not say of themselves, found out by making one of their environments."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np
from gymnasium import spaces

from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.making import make_single
from playvirtual.envs.registry import ActionKind, EnvFamily, check_name, env_family, split_task
from playvirtual.envs.vector import SingleEnv, close_all

REWARD_STEPS = 200  # of random play that show how an environment pays


def action_kind(task: str, env_args: tuple[str, ...] = ()) -> ActionKind:
    """Whether the task's actions are discrete or continuous; a task that does not say is made once to find out."""
    check_name(task)
    actions, name = env_family(task).actions, split_task(task)[1]
    if actions is None:
        return inspect_env(task, env_args).actions
    return actions if isinstance(actions, str) else actions[name]


@dataclass(frozen=True)
class EnvInfo:
    """What an environment of a task shows and takes, found out by making one."""

    actions: ActionKind
    num_actions: int  # discrete ones, or dimensions of continuous ones
    shape: tuple[int, int, int]  # (C, H, W) of its images at their own size
    numbers: int = 0  # beside the image
    rewards: tuple[float, ...] = ()  # of random play with discrete actions, where settings are fitted to them
    background: float = 0.0  # the median shade of its first image, from 0 to 1, likewise


_found: dict[tuple[str, tuple[str, ...]], tuple[EnvFamily, EnvInfo]] = {}  # by task and arguments, with its family


def inspect_env(task: str, env_args: tuple[str, ...] = ()) -> EnvInfo:
    """What an environment of a task whose family makes single ones shows and takes.

    One is made for it, and none again unless its family is registered again.
    """
    registered, key = env_family(task), (task, env_args)
    known = _found.get(key)
    if known is None or known[0] is not registered:
        known = _found[key] = registered, _inspect(task, env_args)
    return known[1]


def inspect_again(task: str) -> None:
    """Forgets what is known of a task, which is made by another function now."""
    for key in [key for key in _found if key[0] == task]:
        del _found[key]


def _inspect(task: str, env_args: tuple[str, ...]) -> EnvInfo:
    """Makes an environment, plays it where that is asked, and closes it."""
    env = _make_plain(task, env_args)
    try:
        space, shape = env.action_space, getattr(env, "image_shape", env.frame_shape)
        numbers = getattr(env, "numbers", 0)
        if not isinstance(space, spaces.Discrete):
            return EnvInfo("continuous", space.shape[0], shape, numbers)
        if not env_family(task).fitted:
            return EnvInfo("discrete", int(space.n), shape, numbers)
        return EnvInfo("discrete", int(space.n), shape, numbers, _random_rewards(env), _background(env, numbers))
    finally:
        close_all([env], task)


def _random_rewards(env: SingleEnv) -> tuple[float, ...]:
    """The finite rewards of the first steps of random play, REWARD_STEPS of them; nothing is drawn for it."""
    rewards: list[float] = []
    done = True
    env.action_space.seed(0)
    with suppress(Exception, SystemExit):  # what fails here fails in the run too, whose error says when and where
        for seed in range(REWARD_STEPS):
            if done:
                env.reset(seed)
            reward, _, done = env.step(np.asarray(env.action_space.sample()))
            rewards.append(reward)
    return tuple(reward for reward in rewards if math.isfinite(reward))


def _background(env: SingleEnv, numbers: int) -> float:
    """The median shade of the first image, from 0 to 1; 0 where there is none."""
    with suppress(Exception, SystemExit):  # what fails here fails in the run too, whose error says when and where
        env.reset(0)
        image = env.frame()[: env.frame_shape[0] - numbers]
        return float(np.median(image)) / 255
    return 0.0


def _make_plain(task: str, env_args: tuple[str, ...]) -> SingleEnv:
    """An environment to find something out about, with no options but its family's."""
    config = EnvironmentConfig(
        frame_stack=1,
        stack_fill="zeros",
        image_size=84,
        grayscale=False,
        action_repeat=1,
        max_episode_frames=0,
        life_loss_is_terminal=False,
        reward_clip=0.0,
        env_args=env_args,
    )
    known = {option.name for option in fields(config)}
    changes = {option: value for option, value in env_family(task).options.items() if option in known}
    return make_single(task, replace(config, **changes))
