"""RUN/probes.json: what probes have measured of a run's agent, each with the step of the checkpoint that it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playvirtual import files
from playvirtual.errors import writing
from playvirtual.files import Missing, Unreadable

FILE = "probes.json"


def save(run: str | Path, name: str, found: Mapping[str, Any]) -> Path:
    """Adds a probe's result, with the step of the checkpoint it is of, to the run's probes.json."""
    path = Path(run) / FILE
    try:
        earlier = files.read_record(path, "run")
    except Unreadable as error:
        if error.refused and not isinstance(error, Missing):
            raise
        earlier = {}
    partial = path.with_suffix(".partial")
    with writing("run", path):
        files.write(partial, json.dumps({**earlier, name: found}, indent=2) + "\n")
        partial.rename(path)
    return path


def recorded(run: Path, name: str, steps: int) -> Mapping[str, Any] | None:
    """What a probe has recorded of the agent after the run's last step; None if that was not probed."""
    try:
        found = files.read_record(run / FILE, "run").get(name)
        if found is None:
            return None
        step = files.as_whole(files.entry(files.as_record(found), "step"), "step")
    except Missing:
        return None
    except ValueError as error:
        raise ValueError(f"probes.json cannot be read ({error}); remove it and probe the run again") from None
    return files.as_record(found) if step >= steps else None


def is_probed(run: Path, name: str, steps: int) -> bool:
    """Whether the finished agent of the run has been probed; a record that cannot be read does not count."""
    try:
        return recorded(run, name, steps) is not None
    except (OSError, ValueError):
        return False


def probed_dynamics_mse(run: Path, steps: int) -> float | None:
    """The recorded error of the dynamics model after the run's last step; None if that was not probed."""
    found = recorded(run, "dynamics", steps)
    if found is None:
        return None
    try:
        return files.as_number(files.entry(found, "mse"), "mse")
    except ValueError as error:
        raise ValueError(f"probes.json cannot be read ({error}); remove it and probe the run again") from None
