"""Environments by the function or class that makes them: env/module:name, or one that a Python program hands over."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gymnasium

from playvirtual.envs.arguments import as_keywords
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.families.gym import in_one_task_line, prepare_drawing
from playvirtual.envs.inspection import inspect_again
from playvirtual.envs.modules import import_named, refuse_file
from playvirtual.envs.observations import shows_images
from playvirtual.envs.registry import EnvFamily
from playvirtual.errors import InputError, shown

Factory = Callable[..., gymnasium.Env[Any, Any]]
ALLOWED = "allowed: a function or class that makes a gymnasium.Env"

_handed_over: dict[str, Factory] = {}  # name → factory of this process that no other one can import


def task_of(factory: Factory) -> str:
    """The task that the factory makes: env/module:name if another process can import it, else a name of this process.

    Two functions that cannot be imported have two names, even if both are called `<lambda>`.
    """
    check_factory(factory)
    if importable := _importable_name(factory):
        return f"env/{importable}"
    for name, known in _handed_over.items():
        if known is factory:
            return f"env/{name}"
    own = "".join(c for c in str(getattr(factory, "__name__", "")) if c.isidentifier() or c.isdigit()) or "factory"
    name, number = own, 1
    while name in _handed_over:
        number += 1
        name = f"{own}-{number}"
    _handed_over[name] = factory
    return f"env/{name}"


def hand_over(task: str, factory: Factory) -> None:
    """Makes `factory` what a task of this process, env/name, is made by."""
    check_factory(factory)
    kind, _, name = task.partition("/")
    if kind != "env" or not name:
        raise InputError(
            f"task: {shown(task)} is not made by a function; allowed beside env=…: a name such as env/my-maze, or a "
            "run of one"
        )
    _handed_over[name] = factory
    inspect_again(task)  # another one may have had the name


def is_handed_over(task: str) -> bool:
    """Whether a task is made by a function that no other process can import."""
    return task.startswith("env/") and ":" not in task


def check_factory(factory: Any) -> None:
    """Raises an InputError unless it is a function or class that may make environments."""
    if isinstance(factory, gymnasium.Env | gymnasium.vector.VectorEnv):
        kind = type(factory).__name__
        raise InputError(
            f"env: an environment, {kind}, is given; allowed: what makes one, since evaluation plays several: "
            f"env={kind} or env=lambda: {kind}(…)"
        )
    if not callable(factory):
        raise InputError(f"env: {shown(factory)} is not allowed; {ALLOWED}")


def make(name: str, config: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    """The environment of the task env/name, made with the `env_args`; it renders if its observations are no images."""
    task, factory, arguments = f"env/{name}", _find(name), as_keywords(config.env_args)
    prepare_drawing()
    with in_one_task_line(task, "be made"):
        env = factory(**arguments)
        if _must_render(env, task) and "render_mode" not in arguments and _takes(factory, "render_mode"):
            env.close()
            env = factory(**arguments, render_mode="rgb_array")
    if not isinstance(env, gymnasium.Env):
        raise InputError(f"task: {task!r} made {shown(env)}; {ALLOWED}")
    return env


def check_name(name: str) -> None:
    """Raises an InputError that says what to do unless the name is a factory's."""
    _find(name)


def _find(name: str) -> Factory:
    """The factory of env/name: the one handed over by that name, or MODULE:NAME, whose module is imported."""
    if name in _handed_over:
        return _handed_over[name]
    task = f"env/{name}"
    module, _, path = name.partition(":")
    if not path:
        raise _unnamed(task, name)
    refuse_file(task)
    found: Any = import_named(task, module)
    for part in path.split("."):
        if not hasattr(found, part):
            known = [n for n, value in vars(sys.modules[module]).items() if _is_env_class(value)]
            classes = f"; its environments: {', '.join(known)}" if known else ""
            raise InputError(f"task: {task!r}: {module!r} has no {path!r}{classes}; allowed: env/MODULE:NAME")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"task: {task!r} is {shown(found)}; {ALLOWED}")
    return found  # type: ignore[no-any-return]


def _unnamed(task: str, name: str) -> InputError:
    """The error for env/name without a colon that nothing in this process is called."""
    module, _, last = name.rpartition(".")
    hint = f"did you mean 'env/{module}:{last}'? " if module else ""
    return InputError(
        f"task: {task!r} is not known; {hint}allowed: env/MODULE:NAME, with a function or class of a module; for a run "
        "whose environment was handed over in Python: the same there, as in pv.evaluate(RUN, env=factory)"
    )


def _importable_name(factory: Any) -> str:
    """ "module:name" if importing that in another process gives the factory; "" if not."""
    module, path = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == "__main__" or module not in sys.modules:
        return ""
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part, None)
    try:
        return f"{module}:{path}" if found is factory and find_spec(module) is not None else ""
    except ValueError:  # a module that was not imported from anywhere
        return ""


def _must_render(env: Any, task: str) -> bool:
    is_env = isinstance(env, gymnasium.Env)
    return is_env and not shows_images(task, env.observation_space) and env.render_mode != "rgb_array"


def _takes(factory: Factory, name: str) -> bool:
    """Whether the factory takes an argument of that name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _is_env_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, gymnasium.Env) and value is not gymnasium.Env


FAMILY = EnvFamily(tasks=None, make=make, check_task=check_name, takes_env_args=True, fitted=True)
