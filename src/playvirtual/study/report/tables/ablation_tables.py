"""The paper's ablation tables in its own layout, filled with the runs that are there, beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from playvirtual import published
from playvirtual.config.build import action_kind, assemble, method_changes
from playvirtual.config.record import to_dict
from playvirtual.study.report import statistics as st
from playvirtual.study.report.sections import Section, Setting, by_preset
from playvirtual.study.report.tables.score_tables import interval
from playvirtual.study.report.tables.table import Table
from playvirtual.study.scores import matrix, suite_tasks
from playvirtual.study.settings import changes
from playvirtual.study.sweep.experiments import EXPERIMENTS, Experiment, Row

MAIN_METHODS = ("rl", "spr", "playvirtual")
PAPER_SUITES = ("atari100k", "dmc100k")  # that the paper's ablations are of


def ablation_tables(sections: Sequence[Section]) -> list[Table]:
    """One table per ablation and preset that have runs, with columns for the runs and for the paper per section."""
    tables = []
    for experiment in EXPERIMENTS.values():
        if any(row.published for row in experiment.rows):
            tables += by_preset(sections, partial(_table, experiment, sections))
    return tables


def _table(experiment: Experiment, found: Sequence[Section], preset: str) -> Table | None:
    sections = [section for section in found if _has_runs(experiment, section, preset)]
    if not sections:
        return None
    columns, quiet = ["setting"], set()
    for section in sections:
        columns += [f"{section.title}, {_measure(section)}", "tasks × runs"]
        if section.suite in PAPER_SUITES:
            quiet.add(len(columns))
            columns.append("paper")
    rows, notes = [], dict[str, tuple[dict[str, None], dict[str, None]]]()  # note → the rows and sections it is of
    for row in experiment.rows:
        cells = [row.label]
        for section in sections:
            cells += _cells(row, section, preset)
            if section.suite in PAPER_SUITES:
                value, note = paper_number(row, section.family)
                cells.append("—" if value is None else f"{value:.1f}")
                if note:
                    labels, titles = notes.setdefault(note, ({}, {}))
                    labels[row.label] = titles[section.title] = None
        if any(cell != "—" for cell in cells[1:]):
            rows.append(tuple(cells))
    layout = "Layout of the paper's" if experiment.source.startswith("Table") else "From the paper's"
    note = f"{layout} {experiment.source}. Each row is over the tasks that its runs have."
    for text, (labels, titles) in notes.items():
        note += f" {' and '.join(labels)}, {' and '.join(titles)}: {text}."
    note += "".join(_scope(experiment, section, preset) + section.unlike_paper for section in sections)
    return Table(f"ablation-{experiment.name}", experiment.title, tuple(columns), rows, quiet=quiet, note=note)


def _scope(experiment: Experiment, section: Section, preset: str) -> str:
    """What the note says of the paper's numbers where rows are over fewer tasks than they are."""
    if section.suite not in PAPER_SUITES:
        return ""
    whole = len(suite_tasks(section.suite))
    if all(len(_scores(row, section, preset)) in (0, whole) for row in experiment.rows):
        return ""
    return f" The paper's numbers are over all {whole} tasks of {section.title}."


def paper_number(row: Row, family: str) -> tuple[float | None, str]:
    """The paper's number of the row's setting on atari or dmc, if it has one, and what to know of it."""
    if row.published is None:
        return None, ""
    paper = {(a.study, a.setting): a for a in published.ablations()}
    shown = row.published_dmc if family == "dmc" and row.published_dmc else row.published
    return paper[shown].value(family), paper[row.published].note(family)


def _measure(section: Section) -> str:
    return {"atari": "median HNS, %", "dmc": "median score"}.get(section.family, "IQM within range")


def _cells(row: Row, section: Section, preset: str) -> list[str]:
    """The row's value in a section, and the number of tasks and runs that it is over."""
    scores = _scores(row, section, preset)
    if not scores:
        return ["—", "—"]
    runs = min(map(len, scores.values()))
    values = matrix(scores, list(scores), runs)
    statistic = st.median if section.family in ("atari", "dmc") else st.iqm
    scale, digits = {"atari": (100.0, 1), "dmc": (1000.0, 1)}.get(section.family, (1.0, 3))
    return [interval(st.bootstrap(statistic, values), scale, digits), f"{len(scores)} × {runs}"]


def _scores(row: Row, section: Section, preset: str) -> dict[str, list[float]]:
    """Task → normalised scores of the runs of this row under the preset."""
    found: dict[str, list[float]] = {}
    for task in section.tasks:
        setting = _match(row, task, section, preset)
        if setting is not None and task in section.runs[setting]:
            scaled = section.normalised(task, section.scores(setting, task))
            if scaled is not None:
                found[task] = np.asarray(scaled).tolist()
    return found


def _match(row: Row, task: str, section: Section, preset: str) -> Setting | None:
    """The setting of the section that this row has on the task under the preset; None if no run has it."""
    kind = section.agent_kind(task, row.method)
    if kind is None or row.actions not in ("any", action_kind(task, kind)):
        return None
    own = _changes(task, row.method, preset, tuple(row.options.items()), kind)
    fixed = {"steps", *method_changes(row.method)}  # options that the whole study's do not override
    common = {name: value for name, value in section.common.items() if name not in fixed}
    wanted = {name: _plain(value) for name, value in {**common, **own}.items()}
    for setting in section.runs:
        has = {name: _plain(value) for name, value in {**common, **dict(setting.changed)}.items()}
        if (setting.method, setting.preset) == (row.method, preset) and has == wanted:
            return setting
    return None


@cache  # a report asks for the same row in several tables
def _changes(task: str, method: str, preset: str, options: tuple[tuple[str, Any], ...], kind: str) -> dict[str, Any]:
    """What differs in a row's configuration from the defaults of its task, method and preset."""
    return changes(to_dict(assemble(task, method, preset, dict(options), kind)))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _has_runs(experiment: Experiment, section: Section, preset: str) -> bool:
    """Whether the section has runs of this ablation's own settings, not only of the methods that every table has."""
    present = [row for row in experiment.rows if _scores(row, section, preset)]
    own = [row for row in present if row.options or row.method not in MAIN_METHODS]
    if experiment.name == "effectiveness":
        return len(present) >= 3
    departs = any(
        setting.changed or setting.method not in MAIN_METHODS
        for row in own
        for task in section.tasks
        if (setting := _match(row, task, section, preset)) is not None
    )
    return len(present) >= 2 and departs
