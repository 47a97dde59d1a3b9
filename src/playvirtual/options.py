"""Options as fields of frozen dataclasses: a sentence for `--help`, the interval of allowed values, types from text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from playvirtual.errors import InputError, shown, unknown

LARGEST_INT = 2**31 - 1  # of every whole number: larger ones do not fit where 32 bits count

# What other libraries call it, where that is too far from its name here to be suggested → an option, or an argument of
# `pv.train` that the command line has as a flag.
ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discount",
    "buffer_size": "capacity",
    "replay_size": "capacity",
    "memory_size": "capacity",
    "timesteps": "steps",
    "total_timesteps": "steps",
    "num_frames": "steps",
    "epochs": "steps",
    "episodes": "eval_episodes",
    "tau": "target_tau",
    "epsilon": "eval_epsilon",
    "algo": "method",
    "algorithm": "method",
    "agent": "method",
    "output_dir": "run_dir",
    "log_dir": "run_dir",
    "out": "run_dir",
    "environment": "env",
    "env_id": "task",
    "env_name": "task",
    "verbose": "quiet",
    "logger": "log",
    "resolution": "image_size",
}


class UnknownOption(InputError):
    """A name that no option has; `known` are those that there are."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, sorted(known)
        meant = ELSEWHERE.get(name)
        super().__init__(str(unknown("option", name, self.known, meant if meant in self.known else None)))


def option(help: str, *, low: float | None = None, high: float | None = None, default: Any = MISSING) -> Any:
    """A dataclass field with a sentence for `--help` and the closed interval in which its value must lie."""
    return field(metadata={"help": help, "low": low, "high": high}, default=default)


@cache
def types_of(cls: type) -> Mapping[str, Any]:
    """The type of every field of a dataclass, worked out once: its annotations are text, which Python has to parse."""
    return MappingProxyType(get_type_hints(cls))


def leaves(config: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """(field, its type, its value) of every ordinary field of a dataclass, nested dataclasses opened, in order."""
    hints = types_of(config.__class__)
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value)
        else:
            yield f, hints[f.name], value


def as_text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def coerce(name: str, kind: Any, value: Any) -> Any:
    """Turns text (from a command line) or JSON into the field's type; an InputError says what is allowed."""
    if get_origin(kind) is Literal:
        by_text = {str(allowed): allowed for allowed in get_args(kind)}
        if str(value) not in by_text:
            raise unknown(name, str(value), by_text)
        return by_text[str(value)]
    if get_origin(kind) is UnionType:  # X | None
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
        if value is None or str(value).lower() == "none":
            return None
    if get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(coerce(name, get_args(kind)[0], item) for item in items)
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise InputError(f"{name}: {shown(value)} is not allowed; allowed: true, false")
        return words[str(value).lower()]
    if kind is str:
        if value is None or isinstance(value, list | tuple | dict) or "\0" in str(value):
            raise InputError(f"{name}: {shown(value)} is not allowed; allowed: text")
        return str(value)
    try:
        # A float would be shown as another number than the one that was given, if that is long.
        number = int(value) if kind is int and re.fullmatch(r"[+-]?\d+", str(value)) else float(value)
        if isinstance(value, bool) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name}: {shown(value)} is not allowed; allowed: {'a whole' if kind is int else 'a'} number"
        ) from None
    return int(number) if kind is int else number


def check_intervals(config: Any) -> None:
    """Raises an InputError that names the first field whose value is not finite or lies outside its interval."""
    for f, _, value in leaves(config):
        low, high = f.metadata.get("low"), f.metadata.get("high")
        for number in value if isinstance(value, tuple) else (value,):
            if number is None or isinstance(number, bool | str):
                continue
            if isinstance(number, float) and not math.isfinite(number):
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_finite(low, high)}")
            if low is not None and number < low:
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_interval(low, high)}")
            highest = LARGEST_INT if high is None and isinstance(number, int) else high
            if highest is not None and number > highest:
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_interval(low, highest)}")


def _interval(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low:.10g}" if low == high else f"{low:.10g} to {high:.10g}"
    return f"{low:g} or more" if low is not None else f"{high:g} or less" if high is not None else "a finite number"


def _finite(low: float | None, high: float | None) -> str:
    """What is allowed in place of an infinite number or NaN."""
    return f"a finite number, {low:g} or more" if low is not None and high is None else _interval(low, high)
