"""The JSONL logs of a run: metrics, evaluations and timing, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from playvirtual import files
from playvirtual.files import Missing, Unreadable
from playvirtual.runs.atomic_io import fsync, write_atomic, write_synced

NAMES = ("metrics", "evaluations", "timing")
SEVERAL_A_STEP = ("timing",)  # the logs with more than one line for a step: of its metrics and of its evaluation
MEAN_ROUNDING = 1e-6  # of the largest return
TAIL = 8192  # bytes that surely hold the last line of metrics.jsonl
REMOVED = ".removed"  # the ending of the file that has the lines which a resumed run has removed from a log

Record = dict[str, Any]


def append(run: Path, name: str, record: Mapping[str, Any]) -> None:
    """Appends one line to metrics.jsonl, evaluations.jsonl or timing.jsonl; a number that is not finite is null."""
    with files.open_for_writing(_file(run, name), append=True) as file:
        file.write((_to_json(record) + "\n").encode())


def _to_json(record: Mapping[str, Any]) -> str:
    try:
        return json.dumps(record, allow_nan=False)
    except ValueError:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        return json.dumps(finite, allow_nan=False)


def read(run: Path, name: str, numbers: Collection[str] = ()) -> tuple[list[Record], list[int]]:
    """The records of a log, and the line numbers, from 1, of damaged lines, which lack a step or one of `numbers`.

    So are lines out of order, the fewest without which the others are in it: a step that a flipped bit has made larger
    must not cost the lines after it. A last line without a newline is neither: a run is writing it, or was killed while
    it did.
    """
    content = _content(run, name).splitlines(keepends=True)
    found = {
        at: record
        for at, record in enumerate(map(_record, content), 1)
        if record is not None and all(files.is_number(record.get(n)) for n in numbers)
    }
    kept = _in_order({at: record["step"] for at, record in found.items()}, repeats=name in SEVERAL_A_STEP)
    damaged = [at for at, line in enumerate(content, 1) if at not in kept and line.endswith(b"\n")]
    return [record for at, record in found.items() if at in kept], damaged


def _in_order(steps: Mapping[int, int], *, repeats: bool) -> set[int]:
    """The lines of a longest selection whose steps grow or, where they may repeat, do not fall."""
    ends, ended_by = list[int](), list[int]()  # the smallest last step of a selection of each length, and its line
    before: dict[int, int] = {}  # line → the one before it in the longest selection that it ends; 0: none
    for line, step in steps.items():
        length = bisect_right(ends, step) if repeats else bisect_left(ends, step)
        before[line] = ended_by[length - 1] if length else 0
        if length == len(ends) or step < ends[length]:
            ends[length : length + 1], ended_by[length : length + 1] = [step], [line]
    chosen, line = set[int](), ended_by[-1] if ended_by else 0
    while line:
        chosen.add(line)
        line = before[line]
    return chosen


def lines(run: Path, name: str) -> list[Record]:
    """The records of a log's undamaged lines; none if the file does not exist yet."""
    return read(run, name)[0]


def last(run: Path, name: str) -> Record:
    """The record of the last complete line of a log, which may be long and growing; {} if there is none."""
    try:
        end = files.tail(_file(run, name), "run", TAIL).splitlines(keepends=True)
    except Unreadable:
        return {}
    return next((record for line in reversed(end) if (record := _record(line)) is not None), {})


def returns(run: Path, step: int) -> list[float] | None:
    """The returns of the evaluation at that step, if the log has it."""
    found = [record for record in lines(run, "evaluations") if record["step"] == step and record.get("returns")]
    return [float(r) for r in found[0]["returns"]] if found else None


def synced_sizes(run: Path) -> dict[str, int]:
    """The size of each log in bytes, after all of them have been synced to the disk."""
    sync(run)
    found = {name: _file(run, name) for name in NAMES}
    return {name: file.stat().st_size if file.exists() else 0 for name, file in found.items()}


def sync(run: Path) -> None:
    """Makes sure that the lines of all logs, and the logs' entries in the run folder, are on the disk."""
    for file in [_file(run, name) for name in NAMES]:
        if file.exists():
            fsync(file)
    fsync(run)


def check_regular(run: Path) -> None:
    """Raises an InputError unless every log that is there is a regular file, and no link, that can be read."""
    for name in NAMES:
        file = _file(run, name)
        if files.is_file(file, "run") and file.is_symlink():
            raise Unreadable("run", file, "it is a link")
        _content(run, name)


def rewind(run: Path, sizes: Mapping[str, int], step: int) -> list[str]:
    """Truncates the logs to their sizes at a checkpoint, but keeps the evaluation of its `step`, if it is complete.

    An evaluation follows from its checkpoint alone: if its line exists, it need not be repeated. Lines that are removed
    are appended to a file of their own first, NAME.jsonl.removed. A log that does not fit the checkpoint keeps its
    undamaged lines; the answer has one message for each such log.
    """
    return [problem for name in NAMES if (problem := _rewind(run, name, sizes.get(name, 0), step))]


def _rewind(run: Path, name: str, size: int, step: int) -> str:
    """Truncates one log; returns what is wrong with it, if anything is."""
    file, data = _file(run, name), _content(run, name)
    kept = data[:size].splitlines(keepends=True)
    if name == "evaluations":
        kept += [line for line in data[size:].splitlines(keepends=True)[:1] if _is_evaluation(line, step)]
    if len(data) >= size and all(_step(line) <= step for line in kept):
        if removed := data[(left := sum(map(len, kept))) :]:
            with files.open_for_writing(file.with_name(file.name + REMOVED), append=True) as copy:
                copy.write(removed)
                copy.flush()
                os.fsync(copy.fileno())
            os.truncate(file, left)
        return ""
    kept = [line for line in data.splitlines(keepends=True) if _step(line) <= step]
    damaged = _free_name(file.with_name(f"{file.name}.damaged"))
    write_synced(damaged, data)
    write_atomic(file, b"".join(kept))
    return (
        f"{file} is damaged: it does not fit the checkpoint; its {len(kept)} undamaged lines up to step {step} stay, "
        f"all others are lost (a copy of the damaged file: {damaged.name})"
    )


def _free_name(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that is free: an earlier copy is never replaced."""
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _file(run: Path, name: str) -> Path:
    return run / f"{name}.jsonl"


def _content(run: Path, name: str) -> bytes:
    try:
        return files.read(_file(run, name), "run")
    except Missing:
        return b""


def _record(line: bytes) -> Record | None:
    """The record of a line; None unless it is complete, has a step, and has the mean of its returns, if it has any."""
    try:
        record = files.as_record(files.parse_json(line)) if line.endswith(b"\n") else None
        if record is not None:
            files.as_whole(files.entry(record, "step"), "step")
            values = files.as_numbers(record.get("returns", []), "returns")
            if "mean" in record and values and not _is_mean(files.as_number(record["mean"], "mean"), values):
                return None
    except ValueError:
        return None
    return record


def _is_mean(mean: float, values: Sequence[float]) -> bool:
    """Whether it is the mean of the values, but for rounding: a flipped bit leaves a number, which is another one."""
    largest = max(1.0, *map(abs, values))
    return abs(mean - sum(value / len(values) for value in values)) <= MEAN_ROUNDING * largest


def _step(line: bytes) -> float:
    """The step of a line; infinity if it is damaged."""
    record = _record(line)
    return math.inf if record is None else record["step"]


def _is_evaluation(line: bytes, step: int) -> bool:
    """Whether the line is the whole evaluation of that step."""
    record = _record(line)
    return record is not None and record["step"] == step and bool(record.get("returns"))
