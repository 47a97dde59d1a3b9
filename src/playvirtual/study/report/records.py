"""Run folders as a report reads them: finished, unfinished, duplicate, damaged or unusable."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playvirtual.errors import InputError
from playvirtual.runs import jsonl
from playvirtual.runs.folder import RunFolder
from playvirtual.study.probes.records import probed_dynamics_mse
from playvirtual.study.settings import changes
from playvirtual.study.text import plural

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
    records: list[Record] = []
    problems: list[Problem] = []
    for root in roots:
        if not root.exists():
            raise InputError(f"runs: {str(root)!r} is not there; allowed: run folders, or folders that hold some")
        for path in _run_folders(root):
            try:
                records.append(read(path))
            except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(Problem(path, _reason(error)))
    if not records and not problems:
        raise InputError(
            f"runs: no run folder in {', '.join(map(str, roots))}; `playvirtual train` and `sweep` make them"
        )
    records, problems = _without_duplicates(records, problems)
    return records, problems + [Problem(r.path, text, "damaged") for r in records for text in r.damage]


def read(path: Path) -> Record:
    """The record of one run folder; raises if it cannot be used."""
    config = RunFolder(path).record()
    steps = int(config["steps"])
    damage: list[str] = []
    lines = _lines(path, "evaluations", damage, ("mean",))
    evaluations = [(e["step"], float(e["mean"])) for e in lines]
    if not all(math.isfinite(mean) for _, mean in evaluations):
        raise ValueError("evaluations.jsonl: a score is not finite")
    timing = _lines(path, "timing", damage)
    metrics = _lines(path, "metrics", damage) if len(evaluations) < 3 else []
    return Record(
        path=path,
        task=str(config["task"]),
        method=str(config["method"]),
        preset=str(config["preset"]),
        agent_kind=str(config["agent_kind"]),
        seed=int(config["seed"]),
        steps=steps,
        step_unit=str(config.get("step_unit", "agent")),
        changed=changes(config),
        evaluations=evaluations,
        training=_thinned([(m["step"], float(m["return"])) for m in metrics if m.get("return") is not None]),
        finished=bool(evaluations) and evaluations[-1][0] >= steps,
        timing={k: float(v) for k, v in timing[-1].items() if isinstance(v, int | float)} if timing else {},
        versions={str(k): str(v) for k, v in config.get("versions", {}).items()},
        videos=tuple(sorted(p for p in (path / "videos").glob("*") if p.suffix in VIDEO_KINDS)),
        dynamics_mse=probed_dynamics_mse(path, steps),
        damage=tuple(damage),
    )


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below.sort()
        if "config.json" in files:
            below.clear()
            if not RunFolder(Path(folder)).is_export:
                yield Path(folder)


def _lines(run: Path, name: str, damage: list[str], numbers: Collection[str] = ()) -> list[dict[str, Any]]:
    """The records of a JSONL log that have these numbers; other lines are added to `damage`."""
    records, bad = jsonl.read(run, name, numbers)
    if bad:
        shown = ", ".join(map(str, bad[:LINES_NAMED])) + (", …" if len(bad) > LINES_NAMED else "")
        damage.append(f"{name}.jsonl: not a record and left out: {plural(len(bad), 'line')} {shown}")
    return records


def _thinned(curve: Curve) -> Curve:
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


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"config.json has no {text}" if isinstance(error, KeyError) else text
