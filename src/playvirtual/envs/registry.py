"""Every task by its name: `family/name`."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from playvirtual.config import EnvironmentConfig
from playvirtual.cores import share
from playvirtual.envs.lanes import Lanes, Single
from playvirtual.envs.protocol import Environment
from playvirtual.errors import InputError, unknown

FAMILIES = ("atari", "dmc", "minatar", "toy", "gym")
TOYS = ("catch", "reach")
# How many lanes at least make a process of their own worth its start: a DMControl step is slow, an Atari emulator is
# slow to make (0.1 s, with Python's lock held).
LANES_PER_PROCESS = {"dmc": 1, "atari": 8}


def make(
    task: str, lanes: int, *, training: bool, config: EnvironmentConfig, workers: int | None = None
) -> Environment:
    """`lanes` lanes of `task`; what a lost life means depends on whether it is for `training`.

    DMControl's and Atari's lanes are shared out over `workers` processes, by default over as many as pay within this
    run's share of the cores; the others are too quick for that. A single Atari lane can get its next game ready.
    """
    check(task)
    kind, name = _split(task)
    workers = _workers(kind, lanes) if workers is None else min(workers, lanes)
    if kind in LANES_PER_PROCESS and workers > 1:
        from playvirtual.envs.parallel import ParallelLanes

        return ParallelLanes(task, lanes, training=training, config=config, workers=workers)
    if kind == "atari":
        from playvirtual.envs.ahead import Ahead
        from playvirtual.envs.atari import Atari

        by_lives = training and config.life_loss_is_terminal
        game = partial(Atari, name, lanes, lost_life_is_terminal=by_lives, config=config)
        return Ahead(game) if lanes == 1 else game()
    single = _single(kind, name, config)
    return Lanes(
        [single() for _ in range(lanes)],
        action_repeat=config.action_repeat,
        max_frames=config.max_episode_frames,
    )


def family(task: str) -> str:
    """The part before the first slash: "atari", "dmc", "minatar", "toy" or "gym"."""
    return _split(task)[0]


def check(task: str) -> None:
    """Raises an `InputError` unless the task can be made here."""
    check_name(task)
    if family(task) == "dmc":
        from playvirtual.envs.dmc import require_package

        require_package()


def check_name(task: str) -> None:
    """Raises an `InputError` with the nearest valid name unless there is a task of that one, installed or not."""
    kind, name = _split(task)
    if kind == "gym":
        from playvirtual.envs.gym import check_id

        check_id(name)
    elif name not in _names(kind):
        elsewhere = next((known for known in task_names() if known.partition("/")[2] == name), None)
        raise unknown("task", task, (f"{kind}/{known}" for known in _names(kind)), elsewhere)


def task_names() -> list[str]:
    """Every task but Gymnasium's, the 26 games of Atari-100k first."""
    return [f"{kind}/{name}" for kind in FAMILIES if kind != "gym" for name in _names(kind)]


def _split(task: str) -> tuple[str, str]:
    """The family, which must exist, and the rest, which may hold more slashes (`gym/ALE/Pong-v5`)."""
    kind, slash, name = task.partition("/")
    if task in FAMILIES:
        example = f"such as {task}/{_names(task)[0]}" if task != "gym" else "gym/<id> among them"
        raise InputError(
            f"task: {task!r} is a family and not a task; allowed: what `playvirtual list tasks` shows, {example}"
        )
    if not slash:
        by_name = {known.partition("/")[2]: known for known in reversed(task_names())}
        nearest = get_close_matches(task, by_name, n=1)
        hint = f"did you mean {by_name[nearest[0]]!r}? " if nearest else ""
        allowed = ", ".join(f"{known}/<name>" for known in FAMILIES)
        raise InputError(f"task: {task!r} has no family; {hint}allowed: {allowed}")
    if kind not in FAMILIES:
        raise unknown("task family", kind, FAMILIES)
    return kind, name


def _names(kind: str) -> list[str]:
    """The names of one family that has a fixed list of them."""
    if kind == "atari":
        from playvirtual.envs.atari import games

        return games()
    if kind == "dmc":
        from playvirtual.envs.dmc import task_names as dmc_tasks

        return dmc_tasks()
    if kind == "minatar":
        from playvirtual.envs.minatar import GAMES

        return list(GAMES)
    return list(TOYS)


def _workers(kind: str, lanes: int) -> int:
    """How many processes pay for that many lanes; 1: none."""
    if kind not in LANES_PER_PROCESS or os.name != "posix":
        return 1
    return max(1, min(lanes // LANES_PER_PROCESS[kind], share()))


def _single(kind: str, name: str, config: EnvironmentConfig) -> Callable[[], Single]:
    """How to build one environment of a family that is played lane by lane."""
    size, grayscale = config.image_size, config.grayscale
    if kind == "dmc":
        from playvirtual.envs.dmc import Control

        return lambda: Control(name, size, grayscale=grayscale)
    if kind == "minatar":
        from playvirtual.envs.minatar import MinAtar

        return lambda: MinAtar(name)
    if kind == "gym":
        from playvirtual.envs.gym import Gym

        return lambda: Gym(name, size, grayscale=grayscale)
    if name == "catch":
        from playvirtual.envs.toy_catch import Catch

        return Catch
    from playvirtual.envs.toy_reach import Reach

    return lambda: Reach(size, grayscale=grayscale)
