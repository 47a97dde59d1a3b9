"""Extensions: installed packages that announce themselves, and entry points given as text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
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
    """Raises an InputError unless it is an object, or text of the form "module:attribute"."""
    if isinstance(entry_point, str) and not all(entry_point.partition(":")):
        raise InputError(f"entry_point: {entry_point!r} is not allowed; allowed: 'module:attribute'")
