"""The runs of a report by section: tasks of one family and length, and the settings that are compared on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from playvirtual import published
from playvirtual.config.build import method_changes, method_names
from playvirtual.config.schema import PRESETS
from playvirtual.study.report import statistics as st
from playvirtual.study.report.records import Record
from playvirtual.study.report.tables.table import Table
from playvirtual.study.scores import FloatArray, hns, matrix, suite_tasks
from playvirtual.study.settings import setting_name

TITLES = {"atari": "Atari-100k", "dmc": "DMControl-100k", "minatar": "MinAtar", "toy": "Toys", "gym": "Gymnasium"}
FAMILY_ORDER = tuple(TITLES)
SUITE_OF = {("atari", None): "atari100k", ("dmc", None): "dmc100k", ("dmc", 500_000): "dmc500k"}  # family, steps
SCALES = {
    "atari": "human-normalised score (0 random play, 1 human)",
    "dmc": "return / 1000",
}
# Options that leave an experiment comparable with the paper's: the precision of matrix products, and how often and on
# how many episodes a policy is evaluated. `eval_epsilon` is not one of them: it changes the policy that is evaluated.
SAME_EXPERIMENT = frozenset(("precision", "eval_episodes", "eval_envs", "eval_every"))
RANGE = "score within the task's range here (0 the lowest run of any setting, 1 the highest)"


@dataclass(frozen=True)
class Setting:
    """A method under a preset with its changed options, apart from changes that all runs of the section share.

    Settings are ordered by rank, and those of one rank by name, where numbers count as such: K = 3 before K = 12.
    """

    rank: int
    name: str
    method: str
    preset: str
    changed: tuple[tuple[str, Any], ...]

    def __lt__(self, other: Setting) -> bool:
        return (self.rank, natural_order(self.name), self.name) < (other.rank, natural_order(other.name), other.name)


def natural_order(text: str) -> tuple[str | float, ...]:
    """What sorts texts as people do: words and numbers by turns."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple(float(part) if n % 2 else part for n, part in enumerate(parts))


class Comparison(NamedTuple):
    """The probability that a run of X beats one of Y, the number of tasks, and the runs of a task of X and of Y."""

    x: Setting
    y: Setting
    estimate: st.Estimate
    tasks: int
    each: tuple[int, int]

    @property
    def runs(self) -> int:
        """The smaller number of runs of a task."""
        return min(self.each)

    @property
    def runs_shown(self) -> str:
        """As in "3", or "3 and 4" where X has three and Y four."""
        return " and ".join(map(str, dict.fromkeys(self.each)))


@dataclass(frozen=True)
class Section:
    """Runs of one family of tasks and one length, which can be compared in one table."""

    family: str
    steps: int | None  # None: the default of the tasks
    runs: dict[Setting, dict[str, dict[int, Record]]]  # setting → task → seed → finished run
    unfinished_by_setting: dict[Setting, list[Record]]  # runs that are not finished, or were stopped early
    common: dict[str, Any]  # options that all runs change to the same value

    @property
    def unfinished(self) -> list[Record]:
        """The runs that are not finished, or were stopped early."""
        return [record for records in self.unfinished_by_setting.values() for record in records]

    @property
    def records(self) -> list[Record]:
        """All runs."""
        finished = [run for tasks in self.runs.values() for seeds in tasks.values() for run in seeds.values()]
        return [*finished, *self.unfinished]

    @property
    def settings(self) -> list[Setting]:
        """The settings of all runs, finished or not."""
        return sorted({*self.runs, *self.unfinished_by_setting})

    @property
    def common_parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The shared changes that all runs have, and those of options that the methods of some runs set themselves."""
        own = {name for setting in self.settings for name in method_changes(setting.method)}
        return (
            {name: value for name, value in self.common.items() if name not in own},
            {name: value for name, value in self.common.items() if name in own},
        )

    @property
    def grid_rows(self) -> dict[str, str]:
        """Label → setting of the rows of a grid of one's own that have given settings their names."""
        named = {setting.name: setting for setting in self.settings}
        labels = {record.grid.label for record in self.records if record.grid is not None}
        rows = {label: named[label] for label in sorted(labels & named.keys())}
        return {label: setting_name(row.method, row.preset, self._not_of_all(row)) for label, row in rows.items()}

    def _not_of_all(self, setting: Setting) -> dict[str, Any]:
        """The changes of a setting that not all runs of the section have."""
        own = method_changes(setting.method)
        shared = {name: value for name, value in self.common_parts[1].items() if name not in own}
        return {**dict(setting.changed), **shared}

    @property
    def suite(self) -> str | None:
        """The suite of the paper with these tasks and this length; `unlike_paper` names other differences."""
        return SUITE_OF.get((self.family, self.steps))

    @property
    def unlike_paper(self) -> str:
        """A sentence for a table's note that names the changes of all runs that matter; "" if there are none."""
        changed = {name: value for name, value in self.common.items() if name not in SAME_EXPERIMENT | {"steps"}}
        if not changed or self.suite is None:
            return ""
        shown = setting_name("", "paper", changed).removeprefix(", ")
        return f" Unlike the paper's, all runs of {self.title} here have {shown}."

    @property
    def title(self) -> str:
        if (self.family, self.steps) == ("dmc", 500_000):
            return "DMControl-500k"
        title = TITLES.get(self.family, self.family)
        return title if self.steps is None else f"{title.removesuffix('-100k')}, {self.steps:,} steps"

    @property
    def key(self) -> str:
        """The name of the section in file names and anchors: letters, digits and hyphens alone."""
        family = re.sub(r"[^a-z0-9]+", "-", self.family.lower())
        return family if self.steps is None else f"{family}-{self.steps}"

    @property
    def scale(self) -> str:
        return SCALES.get(self.family, RANGE)

    @cached_property
    def tasks(self) -> list[str]:
        """All tasks with a finished run, the paper's in its order."""
        found = {task for tasks in self.runs.values() for task in tasks}
        order = [f"{self.family}/{name}" for name in suite_tasks(self.suite)] if self.suite else []
        return [task for task in order if task in found] + sorted(found - set(order))

    def agent_kind(self, task: str, method: str) -> str | None:
        """The kind of agent that the method's runs of the task have; None if there are none."""
        of_method = [tasks.get(task, {}) for setting, tasks in self.runs.items() if setting.method == method]
        return next((record.agent_kind for runs in of_method for record in runs.values()), None)

    def scores(self, setting: Setting, task: str) -> list[float]:
        """One score per seed, in the order of seeds."""
        return [record.score for _, record in sorted(self.runs[setting].get(task, {}).items())]

    def normalised(self, task: str, scores: Sequence[float]) -> FloatArray | None:
        """Scores on the section's scale; None where the task has no scale."""
        values, name = np.asarray(scores, dtype=np.float64), task.partition("/")[2]
        if self.family == "atari":
            return hns(name, values) if name in published.human() else None
        if self.family == "dmc":
            return np.asarray(values / 1000.0)
        pooled = [score for setting in self.runs for score in self.scores(setting, task)]
        low, high = min(pooled), max(pooled)
        return np.asarray((values - low) / (high - low)) if high > low else None

    @cached_property
    def compared(self) -> tuple[list[Setting], list[str]]:
        """The settings and tasks of the aggregates: all tasks that have a scale, and the settings that ran them all.

        If no setting ran the whole suite, the tasks are those that some settings have in common, as many of both as
        give the largest table.
        """
        scaled = [task for task in self.tasks if self.normalised(task, [0.0]) is not None]
        own = {setting: {*scaled} & {*tasks} for setting, tasks in self.runs.items()}
        whole = len(suite_tasks(self.suite)) if self.suite else len(scaled)

        def having(tasks: set[str]) -> list[Setting]:
            return [setting for setting in self.runs if tasks <= own[setting]]

        def size(tasks: set[str]) -> tuple[bool, int, int]:
            return len(tasks) == whole, len(tasks) * len(having(tasks)), len(tasks)

        shared = max((a & b for a in own.values() for b in own.values()), key=size, default=set())
        return having(shared) if shared else [], [task for task in scaled if task in shared]

    def matrix(self, setting: Setting) -> FloatArray:
        """(runs, tasks) on the section's scale: the same number of seeds of each compared task."""
        tasks = self.compared[1]
        scores = {t: np.asarray(self.normalised(t, self.scores(setting, t))).tolist() for t in tasks}
        return matrix(scores, tasks, min(len(values) for values in scores.values()))

    def shared_tasks(self, x: Setting, y: Setting) -> list[str]:
        """The tasks that both settings have finished runs of."""
        return [task for task in self.tasks if task in self.runs[x] and task in self.runs[y]]

    def score_matrix(self, setting: Setting, tasks: Sequence[str]) -> FloatArray:
        """(runs, tasks): the scores as they are, of the same number of seeds of each task."""
        scores = {task: self.scores(setting, task) for task in tasks}
        return matrix(scores, tasks, min(len(values) for values in scores.values()))

    def published(self, method: str) -> FloatArray | None:
        """(1, tasks): the paper's means on the compared tasks; None unless it has them all."""
        table = paper_scores(self.family, self.steps)
        names = [task.partition("/")[2] for task in self.compared[1]]
        if method not in table or not names or not set(names) <= set(table[method]):
            return None
        scaled = [self.normalised(f"{self.family}/{n}", [table[method][n]]) for n in names]
        return np.stack([np.asarray(column) for column in scaled], axis=1)

    def estimate(self, statistic: Any, setting: Setting) -> st.Estimate:
        return st.bootstrap(statistic, self.matrix(setting))


def paper_scores(family: str, steps: int | None) -> published.Table:
    """Method → task → the paper's mean, {} where the paper has none."""
    if family == "atari" and steps is None:
        return published.atari_scores()
    if family == "dmc" and steps in (None, 500_000):
        return published.dmc_scores(steps or 100_000)
    return {}


def paper_stds(family: str, steps: int | None) -> published.Table:
    """Method → task → the paper's standard deviation over runs, {} where the paper has none."""
    if family == "atari" and steps is None:
        return {"playvirtual": published.atari_stds()["playvirtual"]}
    if family == "dmc" and steps in (None, 500_000):
        return published.dmc_stds(steps or 100_000)
    return {}


def sections(records: Sequence[Record]) -> list[Section]:
    """The records by family and length, families in the order of TITLES."""
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        steps = record.steps if "steps" in record.changed else None
        groups.setdefault((record.task.partition("/")[0], steps), []).append(record)
    order = {family: rank for rank, family in enumerate(FAMILY_ORDER)}
    keys = sorted(groups, key=lambda key: (order.get(key[0], len(order)), key[0], key[1] or 0))
    return [_section(family, steps, groups[family, steps]) for family, steps in keys]


def _section(family: str, steps: int | None, records: Sequence[Record]) -> Section:
    common = _common(records)
    named = _named_by_grid({record.path: _setting(record, common) for record in records}, records)
    runs: dict[Setting, dict[str, dict[int, Record]]] = {}
    unfinished: dict[Setting, list[Record]] = {}
    for record in records:
        setting = named[record.path]
        if record.finished:
            runs.setdefault(setting, {}).setdefault(record.task, {})[record.seed] = record
        else:
            unfinished.setdefault(setting, []).append(record)
    return Section(family, steps, {setting: runs[setting] for setting in sorted(runs)}, unfinished, common)


def _named_by_grid(settings: dict[Path, Setting], records: Sequence[Record]) -> dict[Path, Setting]:
    """The settings by run, with the labels of a grid of one's own where each is that of one setting alone."""
    labels: dict[Setting, set[str | None]] = {}
    for record in records:
        labels.setdefault(settings[record.path], set()).add(record.grid.label if record.grid else None)
    single = {setting: next(iter(found)) for setting, found in labels.items() if len(found) == 1}
    wanted = {setting: label for setting, label in single.items() if label is not None}
    taken = Counter([*wanted.values(), *(setting.name for setting in labels if setting not in wanted)])
    renamed = {s: replace(s, name=label) if taken[label] == 1 else s for s, label in wanted.items()}
    return {path: renamed.get(setting, setting) for path, setting in settings.items()}


def _common(records: Sequence[Record]) -> dict[str, Any]:
    """The changes that all runs share, apart from runs whose method sets that option itself."""
    changed = {name: value for record in reversed(records) for name, value in record.changed.items()}
    return {
        name: value
        for name, value in changed.items()
        if all(r.changed.get(name) == value for r in records if name not in method_changes(r.method))
    }


def _setting(record: Record, common: dict[str, Any]) -> Setting:
    own = {name: value for name, value in record.changed.items() if name not in common and name != "steps"}
    rank = method_names().index(record.method)
    hashable = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in own.items())
    name = setting_name(record.method, record.preset, own)
    return Setting(rank, name, record.method, record.preset, hashable)


DEFAULT = "paper"


def by_preset(sections: Sequence[Section], make: Callable[[str], Table | None]) -> list[Table]:
    """The tables that `make` returns for the presets of the runs.

    A caption names the preset unless the default is the only one; the files of other presets are named after them.
    """
    found = {setting.preset for section in sections for setting in section.runs}
    tables = []
    for preset in (preset for preset in PRESETS if preset in found):
        table = make(preset)
        if table is not None:
            name = table.name if preset == DEFAULT else f"{table.name}-{preset}"
            suffix = "" if found == {DEFAULT} else f" (preset {preset})"
            tables.append(replace(table, name=name, caption=f"{table.caption}{suffix}"))
    return tables
