"""A configuration as the JSON record of a run folder, and back; what differs between two of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

from playvirtual.config import registry
from playvirtual.config.schema import Config, validated
from playvirtual.errors import InputError, shown, unknown
from playvirtual.options import coerce, leaves, types_of

NOTES = ("versions", "extended")  # what a run's config.json has beside its options


def to_dict(config: Config) -> dict[str, Any]:
    """Plain JSON values; `from_dict` is the inverse."""
    return {**asdict(config), "agent_kind": registry.agent_of(config.agent).name}


def from_dict(data: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` wrote; what a run folder adds to it (`NOTES`) is ignored."""
    if not isinstance(kind := data.get("agent_kind"), str):
        raise InputError("config.json: the field 'agent_kind' is missing, or no name of an agent")
    agent = registry.agent(kind).config
    own = {name: value for name, value in data.items() if name not in ("agent_kind", *NOTES)}
    return validated(_from_dict(Config, own, agent))


def differences(a: Config, b: Config, without: Collection[str] = ()) -> list[str]:
    """The fields in which two configurations differ, as `name: value in a → value in b`.

    Left out are the fields in `without`, the device, since a run may be resumed on another card or without any, and the
    modules that are imported, since an environment may have been moved to another one.
    """
    if type(a.agent) is not type(b.agent):
        if a.task != b.task:
            return [f"task: {a.task!r} → {b.task!r}"]
        return [f"agent: {registry.agent_of(a.agent).name!r} → {registry.agent_of(b.agent).name!r}"]
    pairs = zip(leaves(a), leaves(b), strict=True)
    return [
        f"{f.name}: {x!r} → {y!r}"
        for (f, _, x), (_, _, y) in pairs
        if x != y and f.name not in ("device", "imports", *without)
    ]


def _from_dict(cls: Any, data: Any, agent: Any, group: str = "") -> Any:
    """A dataclass of options from its record, groups as nested records; `agent` is the class of the agent's options."""
    if not isinstance(data, Mapping):
        raise InputError(f"config.json: {group}: {shown(data)} is not allowed; allowed: a record of options")
    hints = types_of(cls)
    known = {f.name for f in fields(cls)}
    for name in data:
        if name not in known:
            raise unknown("config.json: field", name, known)
    values: dict[str, Any] = {}
    for f in fields(cls):
        kind = agent if f.name == "agent" else hints[f.name]
        if f.name not in data and f.default is not MISSING:
            continue
        if f.name not in data:
            raise InputError(f"config.json: the field {f.name!r} is missing")
        nested = is_dataclass(kind)
        value = data[f.name]
        values[f.name] = _from_dict(kind, value, agent, f.name) if nested else coerce(f.name, kind, value)
    return cls(**values)
