"""The journals of a run: files of JSON lines, each whole or damaged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from playvirtual.training import durable

NAMES = ("metrics", "evaluations", "timing")
TAIL = 8192  # bytes that surely hold the last line of metrics.jsonl

Record = dict[str, Any]


def append(run: Path, name: str, record: Mapping[str, Any]) -> None:
    """Adds one line to metrics.jsonl, evaluations.jsonl or timing.jsonl."""
    with _file(run, name).open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(run: Path, name: str, numbers: Collection[str] = ()) -> tuple[list[Record], list[int]]:
    """What a journal's lines say, and the numbers, from 1, of the damaged ones, which lack their step or a number.

    A last line without an end is neither: a run is writing it, or was stopped while it did.
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
    """What a journal's whole lines say, none if there is no such file yet; damaged ones are left out."""
    return read(run, name)[0]


def last(run: Path, name: str) -> Record:
    """What the last whole line says of a journal that may be long, and growing; {} if there is none."""
    file = _file(run, name)
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL))
            tail = opened.read().splitlines(keepends=True)
    except OSError:
        return {}
    return next((record for line in reversed(tail) if (record := _record(line)) is not None), {})


def returns(run: Path, step: int) -> list[float] | None:
    """The returns of the evaluation at that step, if it is there."""
    found = [record.get("returns") for record in lines(run, "evaluations") if record["step"] == step]
    return [float(r) for r in found[0]] if found and isinstance(found[0], list) else None


def positions(run: Path) -> dict[str, int]:
    """How many bytes of each journal there are, all of them on the disk."""
    files = {name: _file(run, name) for name in NAMES}
    for file in files.values():
        if file.exists():
            durable.sync(file)
    return {name: file.stat().st_size if file.exists() else 0 for name, file in files.items()}


def rewind(run: Path, positions: Mapping[str, int], step: int) -> list[str]:
    """Takes the journals back to the positions of a checkpoint, but keeps the whole evaluation of its `step`.

    An evaluation follows from its checkpoint alone: if its line is there, it need not be played again. A journal
    that is not what the checkpoint was made beside keeps its whole lines; the answer says so, in a line each.
    """
    return [said for name in NAMES if (said := _rewind(run, name, positions.get(name, 0), step))]


def _rewind(run: Path, name: str, size: int, step: int) -> str:
    """Takes one journal back; says what is wrong with it, if anything is."""
    file, data = _file(run, name), _content(run, name)
    kept = data[:size].splitlines(keepends=True)
    if name == "evaluations":
        kept += [line for line in data[size:].splitlines(keepends=True)[:1] if _step(line) == step]
    if len(data) >= size and all(_step(line) <= step for line in kept):
        if file.exists():
            os.truncate(file, sum(map(len, kept)))
        return ""
    kept = [line for line in data.splitlines(keepends=True) if _step(line) <= step]
    aside = file.with_name(f"{file.name}.damaged")
    durable.write_synced(aside, data)
    durable.replace(file, b"".join(kept))
    return (
        f"{file} is damaged: it is not what the checkpoint was written beside; its {len(kept)} whole lines up to "
        f"step {step} stay, all others are lost (as it was: {aside.name})"
    )


def _file(run: Path, name: str) -> Path:
    return run / f"{name}.jsonl"


def _content(run: Path, name: str) -> bytes:
    file = _file(run, name)
    return file.read_bytes() if file.exists() else b""


def _record(line: bytes) -> Record | None:
    """What a line says; None unless it is whole and names its step."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _step(line: bytes) -> float:
    """The step that a line is of; beyond all steps if it is damaged."""
    record = _record(line)
    return math.inf if record is None else record["step"]
