"""Arguments of an environment as a run records them: texts "name=value" with a JSON value, sorted by name."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from playvirtual.errors import InputError, shown

ALLOWED = "allowed: NAME=VALUE such as size=12, with a value that JSON can hold"
PYTHON_WORDS = {"True": True, "False": False, "None": None}


def as_texts(given: str | Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    """The canonical texts of arguments that come as a mapping, or as one or several texts "name=value".

    >>> as_texts(["walls=True", "size=12", "level=easy"])
    ('level="easy"', 'size=12', 'walls=true')
    """
    if isinstance(given, Mapping):
        values = {_checked_name(name, name): value for name, value in given.items()}
    else:
        values = as_keywords([given] if isinstance(given, str) else given)
    return tuple(f"{name}={_as_json(name, values[name])}" for name in sorted(values))


def as_keywords(texts: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments of texts "name=value"; a value that is no JSON is a text itself."""
    found: dict[str, Any] = {}
    if not isinstance(texts, list | tuple):
        raise InputError(f"env_args: {shown(texts)} is not allowed; {ALLOWED}")
    for text in texts:
        name, sign, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not sign:
            raise InputError(f"env_args: {shown(text)} is not allowed; {ALLOWED}")
        if _checked_name(name.strip(), text) in found:
            raise InputError(f"env_args: {name.strip()!r} is given twice; allowed: once")
        found[name.strip()] = _parsed(value)
    return found


def _checked_name(name: Any, given: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InputError(f"env_args: {shown(given)} is not allowed; {ALLOWED}")
    return name


def _parsed(text: str) -> Any:
    if text in PYTHON_WORDS:
        return PYTHON_WORDS[text]
    try:
        return json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text


def _as_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"env_args: {name}={shown(value)} cannot be recorded; allowed: values that JSON can hold, or a factory "
            "that has the value: pv.train(env=lambda: MyEnv(…))"
        ) from None
