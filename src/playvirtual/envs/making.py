"""Environments by the name of their task: all of a run as one vector env, or a single one."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

import gymnasium
from gymnasium import spaces

from playvirtual.device import own_cores
from playvirtual.envs.env import EnvironmentConfig, VectorEnv
from playvirtual.envs.registry import BUILT_IN, check, env_family, family, split_task
from playvirtual.envs.vector import SingleEnv, SyncVectorEnv
from playvirtual.errors import InputError, shown

EVALUATION_LIMIT = 5_000  # frames of an episode that is scored, where neither task nor options limit it


def make(
    task: str, num_envs: int, *, training: bool, config: EnvironmentConfig, num_workers: int | None = None
) -> VectorEnv:
    """`num_envs` environments of `task`; whether a lost life is `terminated` may depend on `training`.

    Environments of families that say so are divided among `num_workers` worker processes, by default as many as
    `num_workers_for` says; all others are played in this process.
    """
    check(task)
    spec = env_family(task)
    num_workers = num_workers_for(task, num_envs) if num_workers is None else min(num_workers, num_envs)
    if spec.envs_per_worker is not None and num_workers > 1:
        from playvirtual.envs.async_vector import AsyncVectorEnv

        return AsyncVectorEnv(task, num_envs, training=training, config=config, num_workers=num_workers)
    if spec.make_vector is not None:
        return spec.make_vector(split_task(task)[1], num_envs, training=training, config=config)
    singles = [make_single(task, config) for _ in range(num_envs)]
    if training and (unseen := getattr(singles[0], "unseen", "")):
        _log_rendered(task, unseen)
    max_frames = config.max_episode_frames if training else _evaluation_limit(task, singles[0], config)
    return SyncVectorEnv(singles, action_repeat=config.action_repeat, max_frames=max_frames, task=task)


def _evaluation_limit(task: str, env: SingleEnv, config: EnvironmentConfig) -> int:
    """The frames after which an episode that is scored is truncated: without a limit it might never end.

    `time_limit` of an environment says after how many frames it ends by itself; without it, or where it is 0, nothing
    is known of such a limit.
    """
    if config.max_episode_frames or getattr(env, "time_limit", 0):
        return config.max_episode_frames
    _log_limit(task, "max_episode_steps" if hasattr(env, "time_limit") else "an attribute time_limit")
    return EVALUATION_LIMIT


@cache
def _log_rendered(task: str, unseen: str) -> None:
    """Tells once that a run sees renderings in the place of observations that are no images."""
    logging.getLogger("playvirtual").info(
        "%s: the agent sees what it renders, since its observations, %s, are no images of uint8", task, unseen
    )


@cache
def _log_limit(task: str, declared_by: str) -> None:
    """Tells once of a limit that only this project sets; `declared_by` is what could have declared another one."""
    logging.getLogger("playvirtual").info(
        "%s declares no time limit (%s): episodes that are scored are truncated after %s frames at the latest; "
        "--max-episode-frames sets another limit",
        task,
        declared_by,
        f"{EVALUATION_LIMIT:,}",
    )


def make_single(task: str, config: EnvironmentConfig) -> SingleEnv:
    """One environment by the factory of its family; a gymnasium.Env is wrapped."""
    factory = env_family(task).make
    assert factory is not None, task
    if family(task) in BUILT_IN:
        env = factory(split_task(task)[1], config)
    else:
        from playvirtual.envs.families.gym import in_one_task_line

        with in_one_task_line(task, "be made"):
            env = factory(split_task(task)[1], config)
        _check_made(env, task)
    if isinstance(env, gymnasium.Env):
        from playvirtual.envs.families.gym import wrap

        return wrap(env, task, config)
    return env


def _check_made(env: Any, task: str) -> None:
    """Raises an InputError unless a registered factory made an environment, with the kind of actions it was given."""
    wanted = ["action_space", "reset", "step", "render", "close"]
    wanted += [] if isinstance(env, gymnasium.Env) else ["frame", "frame_shape"]
    if missing := [name for name in wanted if not hasattr(env, name)]:
        raise InputError(
            f"task: {task!r} made {shown(env)}, which lacks {', '.join(missing)}; allowed: a gymnasium.Env or a "
            "SingleEnv"
        )
    actions, name = env_family(task).actions, split_task(task)[1]
    said = actions if actions is None or isinstance(actions, str) else actions[name]
    if said is not None and (said == "discrete") != isinstance(env.action_space, spaces.Discrete):
        raise InputError(
            f"actions: {task!r} is registered with {said} ones and its action space is {shown(env.action_space)}; "
            "allowed: the kind that it has"
        )


def num_workers_for(task: str, num_envs: int) -> int:
    """How many worker processes pay for that many environments within this run's share of the cores; 1: none."""
    per_worker = env_family(task).envs_per_worker
    if per_worker is None or os.name != "posix":
        return 1
    return max(1, min(num_envs // per_worker, own_cores()))
