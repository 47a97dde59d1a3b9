"""Public functions that are called wrongly: one line that names the argument, its value and what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from playvirtual.errors import InputError, closest, shown

P = ParamSpec("P")
R = TypeVar("R")


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """The same function; an argument that it does not have or misses is an `InputError` in place of a TypeError."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            raise _wrong_call(f"pv.{function.__name__}", signature, args, kwargs) from None
        return function(*args, **kwargs)

    return checked


def keywords(function: Callable[..., Any]) -> list[str]:
    """The names of a function's own arguments that can be given by name."""
    positional_only, many = inspect.Parameter.POSITIONAL_ONLY, (inspect.Parameter.VAR_KEYWORD,)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in (positional_only, *many)]


def as_path(field: str, value: Any) -> Path:
    """The path that an argument gives; an empty one, as of a variable that is not set, is not the present folder."""
    if not isinstance(value, str | Path) or value == "":
        raise InputError(f"{field}: {shown(value)} is not allowed; allowed: the path of a folder or file")
    return Path(value)


def as_function(field: str, value: Any) -> Any:
    """A function that an argument gives, or None."""
    if value is not None and not callable(value):
        raise InputError(f"{field}: {shown(value)} is not allowed; allowed: a function")
    return value


def _wrong_call(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InputError:
    """The error for arguments that do not fit a signature."""
    parameters = list(signature.parameters.values())
    takes = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    allowed = f"allowed: {', '.join(takes)}"
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for wrong in (given for given in kwargs if given not in takes):
            meant = closest(wrong, takes, cutoff=0.6)
            hint = f"did you mean {meant!r}? " if meant else ""
            found = f"{wrong}: {shown(kwargs[wrong])} is given to {name}, which has no {wrong!r}"
            return InputError(f"{found}; {hint}{allowed}")
    if len(args) > len(by_place):
        stray, by_name = args[len(by_place)], takes[len(by_place) :]
        return InputError(
            f"{name}: {shown(stray)} is given without a name after {', '.join(by_place)}; allowed by name: "
            f"{', '.join(by_name) or 'nothing'}"
        )
    for twice in by_place[: len(args)]:
        if twice in kwargs:
            return InputError(f"{twice}: {shown(kwargs[twice])} is given to {name} a second time; allowed: once")
    missing = [
        p.name
        for n, p in enumerate(parameters)
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in kwargs and n >= len(args)
    ]
    return InputError(f"{', '.join(missing)}: none is given to {name}; {allowed}")
