"""Every field of the configuration as a command-line flag, in groups, with its default."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, Literal, get_args, get_origin

from playvirtual.config import Config, leaves

GROUPS = ("environment", "objective", "agent", "replay", "evaluation")


def add_fields(parser: argparse.ArgumentParser, config: Config, without: Collection[str]) -> None:
    """Adds a flag for each field of `config` but those named; the defaults shown are its values."""
    groups = {"": parser.add_argument_group("the run")}
    for group in GROUPS:
        title = (type(getattr(config, group)).__doc__ or group).partition(":")[0].rstrip(".").lower()
        groups[group] = parser.add_argument_group(f"{group}: {title}")
    for f, kind, value in leaves(config):
        if f.name in without:
            continue
        owner = next((g for g in groups if g and hasattr(getattr(config, g), f.name)), "")
        groups[owner].add_argument(
            "--" + f.name.replace("_", "-"),
            dest=f"field_{f.name}",
            metavar=_placeholder(kind),
            help=f"{f.metadata['help']} (default: {_shown(value)})".replace("%", "%%"),
        )


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Field → text of the flags that were given."""
    return {
        name.removeprefix("field_"): value
        for name, value in vars(options).items()
        if name.startswith("field_") and value is not None
    }


def _shown(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _placeholder(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return "N,N,…"
    return {int: "N", float: "X", bool: "true|false"}.get(kind, "TEXT")
