"""How complete a report is: the runs that are missing or unusable, all runs, and the versions that made them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playvirtual import files
from playvirtual.messages import counted, plural
from playvirtual.method.projection import COLLAPSED
from playvirtual.runs import jsonl
from playvirtual.study.report.records import Problem, Record
from playvirtual.study.report.sections import SUITE_OF, Section
from playvirtual.study.report.tables.table import Table
from playvirtual.study.scores import suite_tasks
from playvirtual.study.settings import setting_name

LISTED = 400  # lines of one list that the page shows; the rest is counted
KINDS = {
    "unusable": "Folders that cannot be used",
    "damaged": "Damaged files of runs that are used",
    "duplicate": "Runs that are there twice",
}


def summary(records: Sequence[Record], problems: Sequence[Problem]) -> str:
    """As in "30 finished runs of 3 tasks, 2 unfinished, 1 unusable folder, 1 duplicate left out"."""
    finished, early = counts(records)
    tasks = len({record.task for record in records})
    parts = [f"{counted(finished, 'finished run')} of {counted(tasks, 'task')}"]
    if finished + early < len(records):
        parts.append(f"{len(records) - finished - early} unfinished")
    if early:
        parts.append(f"{early} stopped early")
    kinds = Counter(problem.kind for problem in problems)
    if unusable := kinds["unusable"]:
        parts.append(counted(unusable, "unusable folder"))
    if damaged := kinds["damaged"]:
        parts.append(counted(damaged, "damaged file"))
    if doubles := kinds["duplicate"]:
        parts.append(f"{counted(doubles, 'duplicate')} left out")
    return ", ".join(parts)


def counts(records: Sequence[Record]) -> tuple[int, int]:
    """The numbers of runs that are finished, and of others that were stopped early."""
    finished = sum(record.finished for record in records)
    return finished, sum(record.stopped is not None and not record.finished for record in records)


def stopped_table(section: Section) -> Table | None:
    """The runs that ended before their last step, which are in no other table."""
    rows = [
        (
            record.task,
            setting.name,
            str(record.seed),
            f"{early.step:,}",
            f"{record.steps:,}",
            _score(record),
            early.reason,
        )
        for setting, records in section.unfinished_by_setting.items()
        for record in records
        if (early := record.stopped) is not None
    ]
    columns = ("task", "setting", "seed", "stopped at step", "of", "score", "reason")
    note = "They took fewer steps than the others, so their scores are part of no mean, aggregate or comparison."
    return Table(f"{section.key}-stopped", "Runs that were stopped early", columns, rows, note=note) if rows else None


def _score(record: Record) -> str:
    return f"{record.score:,.2f}" if record.evaluations else "—"


@dataclass(frozen=True)
class Line:
    """One line of a list: a run folder and what is wrong with it, or a text alone."""

    text: str
    path: Path | None = None


@dataclass(frozen=True)
class Listing:
    """Lines under a title."""

    title: str
    lines: list[Line]


def listings(problems: Sequence[Problem], sections: Sequence[Section]) -> list[Listing]:
    """Unusable, damaged and duplicate folders, collapsed and unfinished runs, and runs that are not there.

    No list is empty.
    """
    found = [
        Listing(title, [Line(problem.reason, problem.path) for problem in problems if problem.kind == kind])
        for kind, title in KINDS.items()
    ]
    unfinished = [
        Line(f"evaluated to step {record.reached:,} of {record.steps:,}", record.path)
        for section in sections
        for record in section.unfinished
        if record.stopped is None
    ]
    early = [
        Line(f"stopped at step {record.stopped.step:,} of {record.steps:,}: {record.stopped.reason}", record.path)
        for section in sections
        for record in section.unfinished
        if record.stopped is not None
    ]
    collapsed = [
        Line(f"the targets' spread is {spread:.1g} at step {step:,}: all states look alike to the agent", record.path)
        for section in sections
        for record in section.records
        if record.finished or record.stopped is not None  # in its first steps any run may look so
        for step, spread in [_last_spread(record)]
        if spread < COLLAPSED
    ]
    found.append(Listing("Runs whose representation has collapsed", collapsed))
    absent = [Line(f"{section.title}, {text}") for section in sections for text in _absent(section)]
    found += [Listing("Runs that are not finished", unfinished), Listing("Runs that were stopped early", early)]
    found += [Listing("Runs that are not there", absent)]
    return [listing for listing in found if listing.lines]


def _last_spread(record: Record) -> tuple[int, float]:
    """The last logged spread of the targets and its step; infinite where none is logged."""
    for line in reversed(jsonl.lines(record.path, "metrics")):
        if files.is_number(spread := line.get("target_spread")):
            return int(line["step"]), float(spread)
    return 0, math.inf


def _absent(section: Section) -> list[str]:
    """Seeds that other settings or tasks of the section have, and tasks of the paper's suite without any run."""
    seeds = {seed for tasks in section.runs.values() for runs in tasks.values() for seed in runs}
    lines = []
    for setting, tasks in section.runs.items():
        for task in section.tasks:
            lacking = sorted(seeds - tasks.get(task, {}).keys())
            if lacking:
                shown = ", ".join(map(str, lacking))
                lines.append(f"{setting.name}: {task} {plural(len(lacking), 'seed')} {shown}")
    suite = SUITE_OF.get((section.family, section.steps))
    others = [t for t in suite_tasks(suite) if f"{section.family}/{t}" not in section.tasks] if suite else []
    if others:
        lines.append(f"no run of {len(others)} of the suite's tasks: {', '.join(others)}")
    return lines


def version_table(records: Sequence[Record]) -> Table | None:
    """The versions of each package that the runs were made with, with the number of runs where they differ."""
    counts: dict[str, Counter[str]] = {}
    for record in records:
        for package, number in record.versions.items():
            counts.setdefault(package, Counter())[number] += 1
    rows = []
    for package, numbers in counts.items():
        single = len(numbers) == 1 and sum(numbers.values()) == len(records)
        shown = (
            next(iter(numbers)) if single else ", ".join(f"{n} ({counted(runs, 'run')})" for n, runs in numbers.items())
        )
        rows.append((package, shown))
    drawn = "gl: the OpenGL back end that drew the pixels of DMControl, where runs recorded it."
    note = drawn if "gl" in counts else ""
    return Table("versions", "What the runs were made with", ("package", "version"), rows, note=note) if rows else None


@dataclass(frozen=True)
class Video:
    """A link from the page to a video of a run."""

    name: str
    href: str


@dataclass(frozen=True)
class RunRow:
    """A run in the list of all runs."""

    task: str
    setting: str
    seed: int
    score: str
    videos: list[Video]
    path: Path


def run_rows(records: Sequence[Record], out: Path) -> list[RunRow]:
    """Every run with its score and with links from the page in `out` to its videos."""
    return [
        RunRow(
            task=record.task,
            setting=setting_name(record.method, record.preset, record.changed),
            seed=record.seed,
            score=_score(record) + _about(record),
            videos=[Video(video.name, _link(video, out)) for video in record.videos],
            path=record.path,
        )
        for record in records
    ]


def _about(record: Record) -> str:
    """What must be known beside a run's score: how far it got, and that it was extended."""
    notes = [] if record.finished else [f"{'stopped ' if record.stopped else ''}at step {record.reached:,}"]
    notes += [f"extended from {steps:,} steps" for steps in record.extended]
    return f" ({', '.join(notes)})" if notes else ""


def _link(video: Path, out: Path) -> str:
    """The URL of a video relative to the page; names of files need not be text."""
    return quote(os.fsencode(os.path.relpath(video.resolve(), out.resolve())))
