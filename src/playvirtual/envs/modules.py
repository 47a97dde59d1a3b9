"""Modules that a run imports, and so executes: those that its task and `--import` name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from playvirtual.errors import InputError, in_one_line, shown
from playvirtual.extensions import import_from_here

NAMES_MODULE = ("gym", "env")  # families whose tasks may be module:name


def named_module(task: str) -> str:
    """The module that playing the task imports and so executes: "my_envs" of gym/my_envs:Name-v0; "" for none."""
    kind, _, name = task.partition("/")
    return name.rpartition(":")[0] if kind in NAMES_MODULE else ""


def refuse_file(task: str) -> None:
    """Raises an InputError for a task that names a file, env/my_envs.py:Room, in place of its module."""
    module = named_module(task)
    if module.endswith(".py"):
        meant = task.replace(f"{module}:", f"{module.removesuffix('.py')}:", 1)
        raise InputError(f"task: {task!r} names a file and not a module; did you mean {meant!r}?")


def executed_modules(task: str, imports: Sequence[str] = ()) -> list[str]:
    """The modules that a run of the task executes."""
    return [*imports, *([named_module(task)] if named_module(task) else [])]


def check_trusted(task: str, where: str, *, trust_env: bool, imports: Sequence[str] = ()) -> None:
    """Raises an InputError if `where`, a file that may be foreign, names a module that would be executed.

    A module that the user names is trusted, and so is every one with `trust_env`. Of a module that is imported already
    nothing would be executed again.
    """
    if trust_env:
        return
    for module in executed_modules(task, imports):
        if module not in sys.modules:
            field, what = ("imports", module) if module in imports else ("task", task)
            raise InputError(
                f"{field}: {where} names {what!r}, so the module {module!r} would be imported, which executes it; "
                f"allowed: with --trust-env (in Python: trust_env=True), if you trust it, or with --import {module}"
            )


def check_imports(names: Sequence[str]) -> None:
    """Raises an InputError unless all of them are names of modules."""
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InputError(
                f"imports: {shown(name)} is no module; {_meant(name)}allowed: a name such as my_envs or my_package.envs"
            )


def _meant(name: object) -> str:
    """The module that a name of a file means."""
    path = Path(str(name))
    return f"did you mean {path.stem!r}? " if path.suffix == ".py" and path.stem.isidentifier() else ""


def import_modules(names: Sequence[str]) -> None:
    """Imports modules, which may register environments, agents, methods and samplers."""
    names = [names] if isinstance(names, str) else names
    check_imports(names)
    for name in names:
        _import(name, f"imports: {name!r} cannot be imported")


def import_named(task: str, module: str) -> ModuleType:
    """Imports the module that a task names."""
    return _import(module, f"task: {task!r} cannot import the module {module!r}")


def _import(name: str, failure: str) -> ModuleType:
    try:
        return import_from_here(name)
    except (InputError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # a script may end the process when it is imported
        missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        reason = "there is no such module" if missing else in_one_line(error)
        raise InputError(
            f"{failure}: {reason}; {_meant(name)}allowed: an installed module, or one of the current folder, "
            f"{shown(Path.cwd())}"
        ) from error
