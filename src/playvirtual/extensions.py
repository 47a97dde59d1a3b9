"""Extensions: installed packages that announce themselves, and entry points given as text."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from playvirtual.errors import InputError

GROUP = "playvirtual.extensions"  # the group of entry points by which packages announce themselves

EntryPoint = str | Callable[..., Any]  # "module:attribute", as with gymnasium.register, or the object itself

_loaded = False


def load_extensions() -> None:
    """Loads, once, every entry point of the group "playvirtual.extensions".

    Each names a module, which registers agents, environments or samplers when it is imported, or a function without
    arguments, which is called. One that fails is named in a warning and left out.
    """
    global _loaded
    if _loaded:
        return
    _loaded = True  # before the first is loaded: an extension may itself ask for what is registered
    for announced in entry_points(group=GROUP):
        try:
            extension = announced.load()
            if callable(extension):
                extension()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            logging.getLogger("playvirtual").warning("the extension %r cannot be loaded (%s)", announced.name, reason)


def import_from_here(name: str) -> ModuleType:
    """Imports a module that the user names; one that is not installed is looked for in the current folder.

    A console script, other than `python -m`, does not look there. The folder comes last, and only for such a module: a
    folder that merely has the name of an optional package, as `wandb` does, must not be taken for it.
    """
    load_extensions()  # before the folder could announce any
    here = os.getcwd()
    if name not in sys.modules and here not in sys.path and _is_missing(name.partition(".")[0]):
        sys.path.append(here)
    return import_module(name)


def _is_missing(name: str) -> bool:
    return bool(name) and name not in sys.modules and find_spec(name) is None


def resolve(entry_point: EntryPoint) -> Callable[..., Any]:
    """What "module:attribute" names, imported now, or the object itself."""
    if not isinstance(entry_point, str):
        return entry_point
    module, _, attribute = entry_point.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except Exception as error:  # whatever a foreign module raises while it is imported
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"entry_point: {entry_point!r} cannot be loaded ({reason})") from error
    return found


def check_entry_point(entry_point: EntryPoint) -> None:
    """Raises an InputError unless it is a class or function, or text of the form "module:attribute"."""
    if not callable(entry_point) and not (isinstance(entry_point, str) and all(entry_point.partition(":"))):
        raise InputError(f"entry_point: {entry_point!r} is not allowed; allowed: 'module:attribute'")
