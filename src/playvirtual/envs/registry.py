"""Every task by its name, `family/name`, and the families that people register from outside."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Protocol, get_args

import gymnasium

from playvirtual.calls import explained
from playvirtual.envs.env import EnvironmentConfig, VectorEnv
from playvirtual.envs.image import ToFrame, newest_to_frame
from playvirtual.envs.vector import SingleEnv
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


def family(task: str) -> str:
    """The name of the task's family, the part before the first slash: "atari", "dmc", "gym", …."""
    return split_task(task)[0]


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
        spec.check_options(split_task(task)[1], config)


def require_options(task: str, config: EnvironmentConfig, **only: Any) -> None:
    """Raises an `InputError` unless the options are those that the task alone has."""
    for name, value in only.items():
        if (wanted := getattr(config, name)) != value:
            raise InputError(
                f"{name}: {wanted} is not allowed; allowed: {value}, as {task} shows a grid of cells, not an image"
            )


def check_name(task: str) -> None:
    """Raises an `InputError` with the nearest valid name unless there is such a task, installed or not."""
    kind, name = split_task(task)
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


def split_task(task: str) -> tuple[str, str]:
    """The name of the family, which must exist, and the rest, which may hold more slashes (`gym/ALE/Pong-v5`)."""
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
