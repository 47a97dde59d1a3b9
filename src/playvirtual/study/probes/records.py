"""RUN/probes.json: what probes have measured of a run's agent, each with the step of the checkpoint that it is of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playvirtual.errors import writing

FILE = "probes.json"


def save(run: str | Path, name: str, found: Mapping[str, Any]) -> Path:
    """Adds a probe's result, with the step of the checkpoint it is of, to the run's probes.json."""
    path = Path(run) / FILE
    try:
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        earlier = {}
    partial = path.with_suffix(".partial")
    with writing("run", path):
        partial.write_text(json.dumps({**earlier, name: found}, indent=2) + "\n", encoding="utf-8")
        partial.rename(path)
    return path


def recorded(run: Path, name: str, steps: int) -> Mapping[str, Any] | None:
    """What a probe has recorded of the agent after the run's last step; None if that was not probed."""
    path = run / FILE
    if not path.exists():
        return None
    try:
        found: Mapping[str, Any] | None = json.loads(path.read_text(encoding="utf-8")).get(name)
        return found if found is not None and int(found["step"]) >= steps else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"probes.json cannot be read ({error}); remove it and probe the run again") from None


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
        value = float(found["mse"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"probes.json cannot be read ({error}); remove it and probe the run again") from None
    if not math.isfinite(value):
        raise ValueError("probes.json: the error of the dynamics model is not finite")
    return value
