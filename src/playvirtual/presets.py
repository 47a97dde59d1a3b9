"""The configuration of a run, put together from its task, preset, method and single options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from gymnasium import spaces

from playvirtual import envs
from playvirtual.config import METHODS, PRESETS, Config, with_values
from playvirtual.errors import InputError, unknown
from playvirtual.hyperparameters import (
    ATARI,
    CATCH,
    DMC,
    DMC_CHANGES,
    GYM_BOX,
    GYM_DISCRETE,
    METHOD_CHANGES,
    MINATAR,
    REACH,
    REFERENCE_CHANGES,
)

GYM = {"rainbow": GYM_DISCRETE, "sac": GYM_BOX}  # by the kind of agent


def build(task: str, *, method: str = "playvirtual", preset: str = "paper", **options: Any) -> Config:
    """The configuration of a run of a task that can be played here."""
    if not isinstance(task, str):
        raise InputError(f"task: {task!r} is not allowed; allowed: a name such as 'atari/pong'")
    envs.check(task)
    return assembled(task, method, preset, options)


def assembled(task: str, method: str, preset: str, options: Mapping[str, Any], agent_kind: str = "") -> Config:
    """The task's defaults, the preset, the method, then single options; for `agent_kind` see `base`.

    Whether the task can be played here is not asked: runs are reported where their simulator is not installed.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    config = replace(base(task, agent_kind), method=method, preset=preset)
    if preset == "reference":
        config = with_values(config, REFERENCE_CHANGES[type(config.agent)])
    config = with_values(config, METHOD_CHANGES[method])
    config = with_values(config, options)
    if task.startswith("minatar/") or task == "toy/catch":
        _check_grid(config)
    return _that_learns(config)


def base(task: str, agent_kind: str = "") -> Config:
    """The settings of the task's family before method, preset and options change them.

    The agent of a Gymnasium environment is of the `agent_kind` that config.json has; without it the environment is
    made once to find out.
    """
    family, name = envs.family(task), task.partition("/")[2]
    if family != "gym":
        envs.check_name(task)
    match family:
        case "atari":
            config = ATARI
        case "dmc":
            config = with_values(DMC, DMC_CHANGES.get(name.partition("-")[0], {}))
        case "minatar":
            config = MINATAR
        case "toy":
            config = REACH if name == "reach" else CATCH
        case _:
            kind = agent_kind or _kind_found(task)
            if kind not in GYM:
                raise unknown("agent_kind", kind, GYM)
            config = GYM[kind]
    return replace(config, task=task)


@cache
def _kind_found(task: str) -> str:
    """The kind of agent that the actions of a Gymnasium environment ask for."""
    env = envs.make(task, 1, training=False, config=DMC.environment)
    env.close()
    return "rainbow" if isinstance(env.action_space, spaces.Discrete) else "sac"


def _check_grid(config: Config) -> None:
    """A grid of cells has the size and the channels that it has."""
    own = MINATAR.environment
    for name in ("image_size", "grayscale"):
        wanted, only = getattr(config.environment, name), getattr(own, name)
        if wanted != only:
            raise InputError(
                f"{name}: {wanted} is not allowed; allowed: {only}, as {config.task} shows a grid, not a picture"
            )


def _that_learns(config: Config) -> Config:
    """The same configuration, unless its updates would begin after its last step."""
    if config.agent_steps < config.first_update < inf:
        least = (int(config.first_update) - 1) * config.unit + 1
        raise InputError(
            f"steps: {config.steps} is not allowed; allowed: {least} or more, as the first update follows "
            f"{config.replay.min_size} agent steps of random play (min_size)"
        )
    return config
