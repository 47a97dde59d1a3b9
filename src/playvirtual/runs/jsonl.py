"""The JSONL logs of a run: metrics, evaluations and timing, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from playvirtual.runs.atomic_io import fsync, write_atomic, write_synced

NAMES = ("metrics", "evaluations", "timing")
TAIL = 8192  # bytes that surely hold the last line of metrics.jsonl

Record = dict[str, Any]


def append(run: Path, name: str, record: Mapping[str, Any]) -> None:
    """Appends one line to metrics.jsonl, evaluations.jsonl or timing.jsonl."""
    with _file(run, name).open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(run: Path, name: str, numbers: Collection[str] = ()) -> tuple[list[Record], list[int]]:
    """The records of a log, and the line numbers, from 1, of damaged lines, which lack a step or one of `numbers`.

    A last line without a newline is neither: a run is writing it, or was killed while it did.
    """
    records, damaged = [], []
    for at, line in enumerate(_content(run, name).splitlines(keepends=True), 1):
        record = _record(line)
        if record is not None and all(isinstance(record.get(n), int | float) for n in numbers):
            records.append(record)
        elif line.endswith(b"\n"):
            damaged.append(at)
    return records, damaged


def lines(run: Path, name: str) -> list[Record]:
    """The records of a log's undamaged lines; none if the file does not exist yet."""
    return read(run, name)[0]


def last(run: Path, name: str) -> Record:
    """The record of the last complete line of a log, which may be long and growing; {} if there is none."""
    file = _file(run, name)
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL))
            tail = opened.read().splitlines(keepends=True)
    except OSError:
        return {}
    return next((record for line in reversed(tail) if (record := _record(line)) is not None), {})


def returns(run: Path, step: int) -> list[float] | None:
    """The returns of the evaluation at that step, if the log has it."""
    found = [record.get("returns") for record in lines(run, "evaluations") if record["step"] == step]
    return [float(r) for r in found[0]] if found and isinstance(found[0], list) else None


def positions(run: Path) -> dict[str, int]:
    """The size of each log in bytes, after all of them have been synced to the disk."""
    sync(run)
    files = {name: _file(run, name) for name in NAMES}
    return {name: file.stat().st_size if file.exists() else 0 for name, file in files.items()}


def sync(run: Path) -> None:
    """Makes sure that the lines of all logs, and the logs' entries in the run folder, are on the disk."""
    for file in [_file(run, name) for name in NAMES]:
        if file.exists():
            fsync(file)
    fsync(run)


def rewind(run: Path, positions: Mapping[str, int], step: int) -> list[str]:
    """Truncates the logs to the positions of a checkpoint, but keeps the evaluation of its `step`, if it is complete.

    An evaluation follows from its checkpoint alone: if its line exists, it need not be repeated. A log that does not
    fit the checkpoint keeps its undamaged lines; the answer has one message for each such log.
    """
    return [problem for name in NAMES if (problem := _rewind(run, name, positions.get(name, 0), step))]


def _rewind(run: Path, name: str, size: int, step: int) -> str:
    """Truncates one log; returns what is wrong with it, if anything is."""
    file, data = _file(run, name), _content(run, name)
    kept = data[:size].splitlines(keepends=True)
    if name == "evaluations":
        kept += [line for line in data[size:].splitlines(keepends=True)[:1] if _step(line) == step]
    if len(data) >= size and all(_step(line) <= step for line in kept):
        if file.exists():
            os.truncate(file, sum(map(len, kept)))
        return ""
    kept = [line for line in data.splitlines(keepends=True) if _step(line) <= step]
    copy = file.with_name(f"{file.name}.damaged")
    write_synced(copy, data)
    write_atomic(file, b"".join(kept))
    return (
        f"{file} is damaged: it does not fit the checkpoint; its {len(kept)} undamaged lines up to step {step} stay, "
        f"all others are lost (a copy of the damaged file: {copy.name})"
    )


def _file(run: Path, name: str) -> Path:
    return run / f"{name}.jsonl"


def _content(run: Path, name: str) -> bytes:
    file = _file(run, name)
    return file.read_bytes() if file.exists() else b""


def _record(line: bytes) -> Record | None:
    """The record of a line; None unless it is complete and has a step."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _step(line: bytes) -> float:
    """The step of a line; infinity if it is damaged."""
    record = _record(line)
    return math.inf if record is None else record["step"]
