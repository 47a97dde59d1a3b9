"""What makes two runs the same experiment: the method and what was changed in its defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from playvirtual.config import Config, to_dict
from playvirtual.presets import assembled

# What names a run, and what changes its speed or its records but not what is learned.
RUN_NAMES = frozenset(("task", "method", "preset", "seed"))
SPEED_ALONE = frozenset(
    ("agent_kind", "device", "threads", "capture", "log_every", "checkpoint_every", "video_at_evaluation")
)
# What runs of earlier versions mean by a field they lack.
ADDED = {"encoder_from": ""}


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Field → plain value of a configuration as `to_dict` or config.json gives it, its groups opened."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        if name == "versions":
            continue
        if isinstance(value, Mapping):
            fields |= flat(value)
        else:
            fields[name] = list(value) if isinstance(value, tuple) else value
    return fields


def speed_alone(fields: Mapping[str, Any]) -> frozenset[str]:
    """The fields that change no number of a run with these.

    Random moves of an evaluation are drawn for its lanes in turn: only without any does their number not matter.
    """
    return SPEED_ALONE if fields.get("epsilon") else SPEED_ALONE | {"lanes"}


def changes(record: Mapping[str, Any]) -> dict[str, Any]:
    """Field → value where a configuration departs from its task's, method's and preset's own values.

    Fields that one side lacks (a run of another version) are left out.
    """
    default = _defaults(*(str(record[name]) for name in ("task", "method", "preset", "agent_kind")))
    given = flat(record)
    if given.get("encoder_from"):
        given["encoder_from"] = origin(str(given["encoder_from"]))
    return {
        name: given[name]
        for name, value in default.items()
        if name not in RUN_NAMES | speed_alone(given) and name in given and given[name] != value
    }


def other_results(finished: Mapping[str, Any], wanted: Config) -> list[str]:
    """Lines "name: old → new" for the fields that decide a finished run's numbers and are not as wanted.

    `config.differences` is stricter: a run goes on with what it was begun with.
    """
    before, after = {**ADDED, **flat(finished)}, flat(to_dict(wanted))
    # Runs that were moved together are what they were.
    before, after = ({**c, "encoder_from": origin(str(c["encoder_from"]))} for c in (before, after))
    return [
        f"{name}: {before.get(name, 'absent')} → {value}"
        for name, value in after.items()
        if name not in speed_alone(after) and before.get(name, "absent") != value
    ]


def origin(run: str) -> str:
    """The setting that a run folder is named after: "spr" of runs/dmc-cheetah-run/spr/seed-1."""
    path = Path(run)
    return path.parent.name if re.fullmatch(r"seed-\d+", path.name) else path.name


def setting_name(method: str, preset: str, changed: Mapping[str, Any]) -> str:
    """How people read it: "playvirtual, K = 3"."""
    shown = method if preset == "paper" else f"{method} ({preset})"
    return ", ".join([shown, *(f"{name} = {_text(value)}" for name, value in changed.items())])


def folder_name(method: str, preset: str, changed: Mapping[str, Any]) -> str:
    """How a folder is named after it: "playvirtual-K3"; without changes what `playvirtual train` uses."""
    parts = [method if preset == "paper" else f"{method}-{preset}"]
    parts += [f"{name}{_text(value)}" for name, value in changed.items()]
    return re.sub(r"[^A-Za-z0-9._,+-]", "_", "-".join(parts))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _defaults(task: str, method: str, preset: str, agent_kind: str) -> dict[str, Any]:
    return flat(to_dict(assembled(task, method, preset, {}, agent_kind)))
