"""Every task by its name, `family/name`, and the families that people register from outside."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Protocol, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from playvirtual.calls import explained
from playvirtual.device import own_cores
from playvirtual.envs.env import EnvironmentConfig, VectorEnv
from playvirtual.envs.image import ToFrame, newest_to_frame
from playvirtual.envs.vector import SingleEnv, SyncVectorEnv, close_all
from playvirtual.errors import InputError, shown, unknown, unregistered
from playvirtual.extensions import check_entry_point, load_extensions, resolve

ActionKind = Literal["discrete", "continuous"]
MakeEnv = Callable[[str, EnvironmentConfig], SingleEnv | gymnasium.Env[Any, Any]]


class MakeVectorEnv(Protocol):
    """Makes all environments of a task at once."""

    def __call__(self, name: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> VectorEnv: ...


@dataclass(frozen=True)
class EnvFamily:
    """The tasks of one family, how their environments are made, and what the rest of the project must know of them.

    Either `make` makes one environment, or `make_vector` makes all of them.
    """

    tasks: Sequence[str] | Callable[[], Sequence[str]] | None  # names; None: any name that `check_task` accepts
    make: MakeEnv | None = None
    make_vector: MakeVectorEnv | None = None
    actions: ActionKind | Mapping[str, ActionKind] | None = None  # of all tasks, by task, or None: make one to find out
    options: Mapping[str, Any] = field(default_factory=dict)  # changes to the default options of a run
    check_task: Callable[[str], None] | None = None  # raises an InputError for a wrong name where `tasks` is None
    check_options: Callable[[str, EnvironmentConfig], None] | None = None  # raises for options that do not fit
    check_installed: Callable[[], None] | None = None  # raises an InputError where a package is missing
    takes_env_args: bool = False  # its environments are made with the options' `env_args`
    own_settings: bool = False  # its tasks have settings of their own, which no `size` replaces
    fitted: bool = False  # the settings of a run are fitted to what the environment shows
    envs_per_worker: int | None = None  # environments that pay for a worker process; None: all stay in this process
    # Called in this process before workers start; each worker passes what it returned, as JSON, to `set_up_worker`.
    before_workers: Callable[[], Any] | None = None
    set_up_worker: Callable[[Any], None] | None = None
    to_frame: ToFrame = newest_to_frame  # what a frame is made of, for agents that act outside of these environments

    def task_names(self) -> list[str]:
        """The names without the family's; empty where they cannot be listed."""
        return list((self.tasks() if callable(self.tasks) else self.tasks) or ())


@dataclass(frozen=True)
class _NamedMake:
    """What makes environments, "module:function", imported when the first one is made."""

    entry_point: str

    def __call__(self, name: str, config: EnvironmentConfig) -> SingleEnv | gymnasium.Env[Any, Any]:
        env: SingleEnv | gymnasium.Env[Any, Any] = resolve(self.entry_point)(name, config)
        return env


REWARD_STEPS = 200  # of random play that show how an environment pays
EVALUATION_LIMIT = 5_000  # frames of an episode that is scored, where neither task nor options limit it
BUILT_IN = ("atari", "dmc", "minatar", "toy", "gym", "env")
FAMILIES: dict[str, EnvFamily | str] = {}  # a string is the entry point of an EnvFamily, imported when it is first used


@explained
def register_env(
    name: str,
    make: MakeEnv | str | None = None,
    *,
    tasks: Sequence[str] | None = None,
    actions: ActionKind | Mapping[str, ActionKind] | None = None,
    options: Mapping[str, Any] | None = None,
    entry_point: str = "",
) -> None:
    """Adds a family of tasks `name/…`.

    >>> register_env("grid", lambda name, config: Grid(size=SIZES[name]), tasks=("small", "large"),
    ...              actions="discrete", options={"image_size": 12, "frame_stack": 1})  # doctest: +SKIP

    `make`, a function or "module:function", which is imported when it is first called, gets a task's name without the
    family's and the run's `EnvironmentConfig`, whose `env_args` are the arguments "name=value" of the command line
    (`envs.arguments.as_keywords` reads them). It returns a `SingleEnv`, or a `gymnasium.Env` whose observations or
    `rgb_array` renderings are images. Without `tasks` every name is accepted and passed to `make`. `actions` is the
    kind of action space of all tasks, or of each by name; without it a task's environment is made once to find out.
    `options` change the default options of a run with that kind of action space, which are Atari's or DMControl's;
    `size` among them chooses smaller networks, as `--size` does.

    A factory exists in this process alone and no worker process could call it: its environments are all played in this
    process, by a `SyncVectorEnv`. A family with worker processes is an `EnvFamily` in a module, named by `entry_point`
    ("module:attribute") instead of all the rest; the module is imported when one of its tasks is first used.
    """
    _check_family_name(name)
    if (make is None) == (not entry_point):
        raise InputError(f"env family: {name!r} needs either `make` or `entry_point`")
    new: EnvFamily | str = entry_point
    if make is None:
        check_entry_point(entry_point)
    else:
        if isinstance(make, str) and all(make.partition(":")):
            make = _NamedMake(make)
        if not callable(make):
            raise InputError(
                f"make: {shown(make)} of {name!r} is not allowed; allowed: a function of a task's name and an "
                "EnvironmentConfig, or 'module:function'"
            )
        _check_tasks(name, tasks, actions)
        new = EnvFamily(
            tasks=None if tasks is None else tuple(tasks),
            make=make,
            actions=actions,
            options=dict(options or {}),
            takes_env_args=True,
        )
    if name in FAMILIES and FAMILIES[name] != new:
        if name in BUILT_IN:
            raise InputError(f"env family: {name!r} is one of this package's own; allowed: another name")
        # As when a cell of a notebook is run again.
        logging.getLogger("playvirtual").warning("the env family %r is registered again; the newer one is used", name)
        inspect_env.cache_clear()  # what is known of the older one's tasks need not hold for the newer one's
    FAMILIES[name] = new


def _check_family_name(name: str) -> None:
    if not isinstance(name, str) or not name or "/" in name or name != "".join(name.split()):
        raise InputError(f"env family: {name!r} is not allowed; allowed: a name without slashes and spaces")


def _check_tasks(name: str, tasks: Sequence[str] | None, actions: ActionKind | Mapping[str, ActionKind] | None) -> None:
    if isinstance(tasks, str) or (tasks is not None and (not tasks or not all(tasks))):
        raise InputError(f"tasks: {tasks!r} of {name!r} is not allowed; allowed: a sequence of names, or None")
    if isinstance(actions, Mapping) and set(actions) != set(tasks or ()):
        raise InputError(f"actions: {sorted(actions)} of {name!r} are not its tasks; allowed: one entry for each task")
    kinds = list(actions.values()) if isinstance(actions, Mapping) else [actions]
    for kind in kinds:
        if kind is not None and kind not in get_args(ActionKind):
            raise unknown("actions", str(kind), get_args(ActionKind))


for _name in BUILT_IN:
    _module = "factories" if _name == "env" else f"families.{_name}"
    register_env(_name, entry_point=f"playvirtual.envs.{_module}:FAMILY")


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
        return spec.make_vector(_split(task)[1], num_envs, training=training, config=config)
    singles = [_make_single(task, config) for _ in range(num_envs)]
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


def _make_single(task: str, config: EnvironmentConfig) -> SingleEnv:
    """One environment by the factory of its family; a gymnasium.Env is wrapped."""
    factory = env_family(task).make
    assert factory is not None, task
    if family(task) in BUILT_IN:
        env = factory(_split(task)[1], config)
    else:
        from playvirtual.envs.families.gym import in_one_task_line

        with in_one_task_line(task, "be made"):
            env = factory(_split(task)[1], config)
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
    actions, name = env_family(task).actions, _split(task)[1]
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


def family(task: str) -> str:
    """The name of the task's family, the part before the first slash: "atari", "dmc", "gym", …."""
    return _split(task)[0]


def env_family(task: str) -> EnvFamily:
    """The registered family of the task."""
    return _load(family(task))


def to_frame_of(task: str) -> ToFrame:
    """How a task's raw observations become frames; the images of a family that is not registered here are images."""
    load_extensions()
    kind = task.partition("/")[0]
    return _load(kind).to_frame if kind in FAMILIES else newest_to_frame


def entry_point(task: str) -> str:
    """Where another process finds the task's family, "module:attribute"; an InputError for a family that has none."""
    name = family(task)
    found = FAMILIES[name]
    if not isinstance(found, str):
        raise InputError(
            f"env family: {name!r} is registered by a factory of this process alone, which no worker process can call; "
            "allowed: families registered with `entry_point`"
        )
    return found


def action_kind(task: str, env_args: tuple[str, ...] = ()) -> ActionKind:
    """Whether the task's actions are discrete or continuous; a task that does not say is made once to find out."""
    check_name(task)
    actions, name = env_family(task).actions, _split(task)[1]
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


@cache
def inspect_env(task: str, env_args: tuple[str, ...] = ()) -> EnvInfo:
    """Makes one environment of a task whose family makes single ones, plays it where that is asked, and closes it."""
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
    return _make_single(task, replace(config, **changes))


def check(task: str) -> None:
    """Raises an `InputError` unless the task can be made here."""
    check_name(task)
    check_installed = env_family(task).check_installed
    if check_installed is not None:
        check_installed()


def check_options(task: str, config: EnvironmentConfig) -> None:
    """Raises an `InputError` for options that the task's environments cannot have."""
    spec = env_family(task)
    if config.env_args and not spec.takes_env_args:
        raise InputError(
            f"env_args: {', '.join(config.env_args)} is not allowed, as {family(task)}/… takes none; allowed: for "
            "minatar/…, gym/…, env/… and families that are registered"
        )
    if spec.check_options is not None:
        spec.check_options(_split(task)[1], config)


def require_options(task: str, config: EnvironmentConfig, **only: Any) -> None:
    """Raises an `InputError` unless the options are those that the task alone has."""
    for name, value in only.items():
        if (wanted := getattr(config, name)) != value:
            raise InputError(
                f"{name}: {wanted} is not allowed; allowed: {value}, as {task} shows a grid of cells, not an image"
            )


def check_name(task: str) -> None:
    """Raises an `InputError` with the nearest valid name unless there is such a task, installed or not."""
    kind, name = _split(task)
    spec = _load(kind)
    if spec.tasks is None:
        if spec.check_task is not None:
            spec.check_task(name)
    elif name not in spec.task_names():
        elsewhere = next((known for known in task_names() if known.partition("/")[2] == name), None)
        raise unknown("task", task, (f"{kind}/{known}" for known in spec.task_names()), elsewhere)


def task_names() -> list[str]:
    """Every task of the families that list theirs (Gymnasium's do not), the 26 games of Atari-100k first."""
    load_extensions()
    names = []
    for kind in FAMILIES:
        try:
            names += [f"{kind}/{name}" for name in _load(kind).task_names()]
        except InputError as error:  # a registered family that cannot be loaded must not hide the others
            logging.getLogger("playvirtual").warning("%s", error)
    return names


def _load(name: str) -> EnvFamily:
    """The family of that name, imported if it is registered by its entry point."""
    found = FAMILIES[name]
    if not isinstance(found, str):
        return found
    try:
        loaded = resolve(found)
    except InputError as error:
        raise InputError(f"env family: {name!r}: {error}") from error
    if not isinstance(loaded, EnvFamily):
        raise InputError(f"env family: {found!r} of {name!r} is {loaded!r}; allowed: an EnvFamily")
    return loaded


def _split(task: str) -> tuple[str, str]:
    """The family, which must exist, and the rest, which may hold more slashes (`gym/ALE/Pong-v5`)."""
    load_extensions()
    kind, slash, name = task.partition("/")
    if task in FAMILIES:
        names = _load(task).task_names()
        example = f"such as {task}/{names[0]}" if names else f"{task}/<id> among them"
        raise InputError(
            f"task: {task!r} is a family and not a task; allowed: what `playvirtual list tasks` shows, {example}"
        )
    if not slash:
        by_name = {known.partition("/")[2]: known for known in reversed(task_names())}
        nearest = get_close_matches(task, by_name, n=1)
        meant = f"env/{task}" if ":" in task else _meant_by_id(task) or (by_name[nearest[0]] if nearest else "")
        hint = f"did you mean {meant!r}? " if meant else ""
        allowed = ", ".join(f"{known}/<name>" for known in FAMILIES)
        raise InputError(f"task: {task!r} has no family; {hint}allowed: {allowed}")
    if kind not in FAMILIES:
        raise unregistered("task family", kind, FAMILIES, _meant_by_id(task))
    return kind, name


def _meant_by_id(task: str) -> str | None:
    """The task that an id of Gymnasium means: CartPole-v1, ALE/Pong-v5, PongNoFrameskip-v4, MinAtar/Breakout-v1."""
    found = re.fullmatch(r"(?:(\w+)/)?([\w-]+?)(?:NoFrameskip)?-v\d+", task)
    if found is None:
        return None
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found[2]).lower()
    built_in = f"{'minatar' if found[1] == 'MinAtar' else 'atari'}/{name}"
    return built_in if built_in in task_names() else f"gym/{task}"
