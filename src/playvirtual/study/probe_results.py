"""RUN/probes.json: what was measured of a run beyond its score."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from playvirtual.errors import writing

FILE = "probes.json"


def save(run: str | Path, name: str, found: dict[str, Any]) -> Path:
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


def probed_dynamics_mse(run: Path, steps: int) -> float | None:
    """The dynamics model's error after the run's last step; None where that was not probed."""
    path = run / FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("dynamics")
        value = float(found["mse"]) if found is not None and int(found["step"]) >= steps else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"probes.json cannot be read ({error}); remove it and probe the run again") from None
    if value is not None and not math.isfinite(value):
        raise ValueError("probes.json: the error of the dynamics model is not finite")
    return value
