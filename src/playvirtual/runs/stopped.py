"""stopped.json of a run folder: why a run ended before its last step, by its score or by a callback.

A run that a signal stopped has none: it is interrupted, and resumes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from playvirtual import files
from playvirtual.files import Missing, Unreadable
from playvirtual.runs.atomic_io import fsync, write_atomic

NAME = "stopped.json"


class Stopped(NamedTuple):
    """The step after which a run ended early, and the reason in words."""

    step: int
    reason: str


def write(run: Path, stopped: Stopped) -> None:
    """Writes stopped.json, completely or not at all."""
    write_atomic(run / NAME, (json.dumps(stopped._asdict(), ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def read(run: Path) -> Stopped | None:
    """How the run ended early; None if it did not."""
    try:
        record = files.read_record(run / NAME, "run")
    except Missing:
        return None
    try:
        reason = files.entry(record, "reason")
        if not isinstance(reason, str):
            raise ValueError("reason: it is no text")
        return Stopped(files.as_whole(files.entry(record, "step"), "step"), " ".join(reason.split()))
    except ValueError as error:
        raise Unreadable("run", run / NAME, str(error)) from None


def remove(run: Path) -> None:
    """Removes stopped.json, for a run that continues."""
    (run / NAME).unlink(missing_ok=True)
    fsync(run)
