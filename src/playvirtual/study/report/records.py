"""Run folders as a report reads them: finished, unfinished, duplicate, damaged or unusable."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playvirtual import files
from playvirtual.errors import InputError, shown
from playvirtual.files import Unreadable
from playvirtual.messages import plural
from playvirtual.options import LARGEST_INT
from playvirtual.runs import jsonl, stopped
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.stopped import Stopped
from playvirtual.study.grid_record import GridRow, Grids
from playvirtual.study.probes.records import probed_dynamics_mse
from playvirtual.study.settings import changes

VIDEO_KINDS = (".mp4", ".gif", ".webm")
LINES_NAMED = 5  # of the damaged lines of a file
CURVE_POINTS = 60  # of a training curve in a small plot

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Record:
    """One run: its settings, scores and times."""

    path: Path
    task: str
    method: str
    preset: str
    agent_kind: str
    seed: int
    steps: int
    step_unit: str
    changed: dict[str, Any]  # options that differ from the defaults of the task, method and preset
    evaluations: Curve  # (step, mean return)
    training: Curve  # the same of training episodes, read if there are too few evaluations for a curve
    finished: bool
    timing: dict[str, float]  # seconds in total and by part
    versions: dict[str, str]
    videos: tuple[Path, ...]
    dynamics_mse: float | None = None  # what `playvirtual probe` recorded for the finished agent
    stopped: Stopped | None = None  # how it ended before its last step, by its score or by a callback
    extended: tuple[int, ...] = ()  # the numbers of steps that it had before it was given more
    grid: GridRow | None = None  # its row in a grid of one's own
    damage: tuple[str, ...] = ()  # lines of its JSONL logs that were left out

    @property
    def score(self) -> float:
        """Mean return of the last evaluation."""
        return self.evaluations[-1][1]

    @property
    def reached(self) -> int:
        """The step of the last evaluation, 0 before the first."""
        return self.evaluations[-1][0] if self.evaluations else 0


@dataclass(frozen=True)
class Problem:
    """A run folder that is unusable, a duplicate, or used without its damaged lines, and the reason."""

    path: Path
    reason: str
    kind: Literal["unusable", "duplicate", "damaged"] = "unusable"


def collect(roots: Sequence[Path]) -> tuple[list[Record], list[Problem]]:
    """Every run below `roots` in order of its path, and the problems of those that are left out or damaged."""
    grids = Grids()
    records: list[Record] = []
    problems: list[Problem] = []
    for root in roots:
        if (found := files.kind(root, "runs")) != "folder":
            what = "is not there" if found is None else "is a file and not a folder"
            raise InputError(f"runs: {shown(root)} {what}; allowed: run folders, or folders that hold some")
        for path in _run_folders(root, problems):
            try:
                records.append(read(path, grids))
            except (OSError, ValueError) as error:
                problems.append(Problem(path, str(error)))
    if not records and not problems:
        raise InputError(
            f"runs: no run folder in {', '.join(map(str, roots))}; `playvirtual train` and `sweep` make them"
        )
    records, problems = _without_duplicates(records, problems)
    return records, problems + [Problem(r.path, text, "damaged") for r in records for text in r.damage]


def read(path: Path, grids: Grids | None = None) -> Record:
    """The record of one run folder; raises if it cannot be used."""
    config = RunFolder(path).record()
    text = {name: _text(config, name) for name in ("task", "method", "preset", "agent_kind")}
    steps = files.as_whole(files.entry(config, "steps"), "steps", 1, LARGEST_INT)
    damage: list[str] = []
    lines = _lines(path, "evaluations", damage, ("mean",))
    evaluations = [(e["step"], float(e["mean"])) for e in lines]
    timing = _lines(path, "timing", damage)
    metrics = _lines(path, "metrics", damage) if len(evaluations) < 3 else []
    return Record(
        path=path,
        **text,
        seed=files.as_whole(files.entry(config, "seed"), "seed", 0, LARGEST_INT),
        steps=steps,
        step_unit="environment" if config.get("step_unit") == "environment" else "agent",
        changed=changes(config),
        evaluations=evaluations,
        training=_training(metrics),
        finished=bool(evaluations) and evaluations[-1][0] >= steps,
        timing={k: float(v) for k, v in timing[-1].items() if files.is_number(v)} if timing else {},
        versions={str(k): str(v) for k, v in files.as_record(config.get("versions", {})).items()},
        videos=_videos(path, damage),
        dynamics_mse=probed_dynamics_mse(path, steps),
        stopped=_stopped(path, damage),
        extended=_extended(config),
        grid=(grids or Grids()).row_of(path),
        damage=tuple(damage),
    )


def training_curve(record: Record) -> Curve:
    """The returns of training episodes, which `read` leaves out where evaluations make a curve."""
    return record.training or _training(jsonl.lines(record.path, "metrics"))


def _training(metrics: Sequence[Mapping[str, Any]]) -> Curve:
    return thinned([(m["step"], float(m["return"])) for m in metrics if files.is_number(m.get("return"))])


def _stopped(path: Path, damage: list[str]) -> Stopped | None:
    """How the run ended early; a record of it that cannot be read is added to `damage`."""
    try:
        return stopped.read(path)
    except Unreadable as error:
        damage.append(str(error))
        return None


def _extended(config: Mapping[str, Any]) -> tuple[int, ...]:
    listed = config.get("extended", [])
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return tuple(int(entry["from"]) for entry in entries if files.is_number(entry.get("from")))


def _text(config: Mapping[str, Any], name: str) -> str:
    value = files.entry(config, name)
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name}: {shown(value)} is not allowed; allowed: a name")
    return value


def _videos(run: Path, damage: list[str]) -> tuple[Path, ...]:
    """The run's videos; a folder of videos that cannot be read is added to `damage`."""
    try:
        names = files.listed(run / "videos", "videos")
    except Unreadable as error:
        damage.append(str(error))
        return ()
    return tuple(run / "videos" / name for name in names if Path(name).suffix in VIDEO_KINDS)


def _run_folders(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Every run folder at and below `root`; folders that cannot be read are added to `problems`."""

    def refuse(error: OSError) -> None:
        problems.append(Problem(Path(error.filename), f"it cannot be read: {error.strerror}"))

    for folder, below, names in os.walk(root, onerror=refuse):
        below.sort()
        if "config.json" in names:
            below.clear()
            try:
                is_export = RunFolder(Path(folder)).is_export
            except InputError as error:
                problems.append(Problem(Path(folder), str(error)))
                continue
            if not is_export:
                yield Path(folder)


def _lines(run: Path, name: str, damage: list[str], numbers: Collection[str] = ()) -> list[dict[str, Any]]:
    """The records of a JSONL log that have these numbers; other lines are added to `damage`."""
    records, bad = jsonl.read(run, name, numbers)
    if bad:
        shown = ", ".join(map(str, bad[:LINES_NAMED])) + (", …" if len(bad) > LINES_NAMED else "")
        damage.append(f"{name}.jsonl: not a record and left out: {plural(len(bad), 'line')} {shown}")
    return records


def thinned(curve: Curve) -> Curve:
    """The curve with at most CURVE_POINTS points, each the mean of consecutive points."""
    size = -(-len(curve) // CURVE_POINTS)
    groups = [curve[at : at + size] for at in range(0, len(curve), size)] if size > 1 else [[point] for point in curve]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _without_duplicates(records: list[Record], problems: list[Problem]) -> tuple[list[Record], list[Problem]]:
    """The records without duplicates (same task, setting and seed), of which the one that got furthest is kept."""
    furthest: dict[tuple[str, ...], Record] = {}
    # Sorting is stable: of records that got equally far, the first by path is kept.
    for record in sorted(records, key=lambda r: (r.finished, r.reached), reverse=True):
        furthest.setdefault(_identity(record), record)
    kept = [record for record in records if furthest[_identity(record)] is record]
    for record in records:
        if (other := furthest[_identity(record)]) is not record:
            reason = f"left out: the same task, setting and seed as {other.path}, which has got as far or further"
            problems.append(Problem(record.path, reason, "duplicate"))
    return kept, problems


def _identity(record: Record) -> tuple[str, ...]:
    """The task, setting and seed, which are equal in folders that hold the same run."""
    return (record.task, record.method, record.preset, repr(record.changed), str(record.seed))
