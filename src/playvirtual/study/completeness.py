"""What a report says of itself: which runs are missing or unusable, which versions made the rest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from playvirtual.study.counted import counted, plural
from playvirtual.study.records import Problem, Record
from playvirtual.study.scores import suite_tasks
from playvirtual.study.sections import SUITE_OF, Section
from playvirtual.study.settings import setting_name
from playvirtual.study.tables import Table

LISTED = 400  # lines of one list; the rest is counted
KINDS = {
    "unusable": "Folders that cannot be used",
    "damaged": "Damaged files of runs that are used",
    "double": "Runs that are there twice",
}


def summary(records: Sequence[Record], problems: Sequence[Problem]) -> str:
    """As in "30 finished runs of 3 tasks, 2 unfinished, 1 unusable folder, 1 duplicate left out"."""
    finished = sum(record.finished for record in records)
    tasks = len({record.task for record in records})
    parts = [f"{counted(finished, 'finished run')} of {counted(tasks, 'task')}"]
    if finished < len(records):
        parts.append(f"{len(records) - finished} unfinished")
    kinds = Counter(problem.kind for problem in problems)
    if unusable := kinds["unusable"]:
        parts.append(counted(unusable, "unusable folder"))
    if damaged := kinds["damaged"]:
        parts.append(counted(damaged, "damaged file"))
    if doubles := kinds["double"]:
        parts.append(f"{counted(doubles, 'duplicate')} left out")
    return ", ".join(parts)


def missing_html(problems: Sequence[Problem], sections: Sequence[Section]) -> str:
    """What cannot be used, is damaged or there twice; runs not finished; seeds and tasks that are not there."""
    parts = []
    for kind, title in KINDS.items():
        lines = [f"<code>{escape(str(p.path))}</code>: {escape(p.reason)}" for p in problems if p.kind == kind]
        if lines:
            parts.append(_listing(title, lines))
    open_runs = [record for section in sections for record in section.unfinished]
    if open_runs:
        lines = [
            f"<code>{escape(str(r.path))}</code>: evaluated to step {r.reached:,} of {r.steps:,}" for r in open_runs
        ]
        parts.append(_listing("Runs that are not finished", lines))
    absent = [f"{escape(section.title)}, {line}" for section in sections for line in _absent(section)]
    if absent:
        parts.append(_listing("Runs that are not there", absent))
    return "\n".join(parts) or "<p>Nothing: every setting has every task and every seed that any of them has.</p>"


def _absent(section: Section) -> list[str]:
    """Seeds that other settings or tasks of the section have, and tasks of the paper's suite nobody has."""
    seeds = {seed for tasks in section.runs.values() for runs in tasks.values() for seed in runs}
    lines = []
    for setting, tasks in section.runs.items():
        for task in section.tasks:
            lacking = sorted(seeds - tasks.get(task, {}).keys())
            if lacking:
                shown = ", ".join(map(str, lacking))
                lines.append(f"{escape(setting.name)}: {escape(task)} {plural(len(lacking), 'seed')} {shown}")
    suite = SUITE_OF.get((section.family, section.steps))
    others = [t for t in suite_tasks(suite) if f"{section.family}/{t}" not in section.tasks] if suite else []
    if others:
        lines.append(f"no run of {len(others)} of the suite's tasks: {escape(', '.join(others))}")
    return lines


def _listing(title: str, lines: Sequence[str]) -> str:
    """A heading and a list; what was not escaped yet must be escaped by the caller."""
    shown = "".join(f"<li>{line}</li>" for line in lines[:LISTED])
    more = f"<p>… and {len(lines) - LISTED} more.</p>" if len(lines) > LISTED else ""
    return f"<details open><summary>{escape(title)} ({len(lines)})</summary><ul>{shown}</ul>{more}</details>"


def version_table(records: Sequence[Record]) -> Table | None:
    """Package by package the versions the runs were made with; two or more are worth a look."""
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
    note = "gl: the OpenGL back end that drew the pixels of DMControl, where runs recorded it."
    return Table("versions", "What the runs were made with", ("package", "version"), rows, note=note) if rows else None


def runs_html(records: Sequence[Record], out: Path) -> str:
    """Every run with its score and its videos, folded away."""
    rows = []
    for record in records:
        videos = " ".join(_link(video, out) for video in record.videos) or "—"
        name = setting_name(record.method, record.preset, record.changed)
        score = f"{record.score:,.2f}" if record.evaluations else "—"
        state = "" if record.finished else f" (at step {record.reached:,})"
        rows.append(
            f"<tr><th scope=row>{escape(record.task)}</th><td>{escape(name)}</td><td>{record.seed}</td>"
            f"<td>{score}{state}</td><td>{videos}</td><td class=long><code>{escape(str(record.path))}</code></td></tr>"
        )
    head = "".join(
        f"<th scope=col>{name}</th>" for name in ("task", "setting", "seed", "score", "videos", "run folder")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<details><summary>All runs ({len(records)})</summary><div class=scroll>{table}</div></details>"


def _link(video: Path, out: Path) -> str:
    target = quote(os.fsencode(os.path.relpath(video.resolve(), out.resolve())))
    return f'<a href="{escape(target)}">{escape(video.name)}</a>'
