"""The numbers of a section as tables: scores beside the paper's, aggregates, comparisons, time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from playvirtual import published
from playvirtual.messages import counted, duration
from playvirtual.study.report import statistics as st
from playvirtual.study.report.sections import Comparison, Section, Setting, paper_scores, paper_stds
from playvirtual.study.report.statistics import Estimate
from playvirtual.study.report.tables.table import Table
from playvirtual.study.scores import PAPER_BASELINES, PAPER_METHODS, name_in_paper, suite_tasks

WORLD_MODELS = {"simple": "SimPLe", "planet": "PlaNet", "dreamer": "Dreamer", "slac": "SLAC"}
PAPER_STDS = {"spr_rerun": "Baseline, paper", "playvirtual": "PlayVirtual, paper"}
NO_INTERVAL = "One run of a task leaves no interval."
STATISTICS = {"IQM": st.iqm, "median": st.median, "mean": st.mean, "optimality gap": st.optimality_gap}
MAX_PAIRS = 15  # comparisons shown
CONFIDENCE = 0.95  # of a reading, as of the intervals


def paper_methods(section: Section) -> dict[str, str]:
    """Name in the paper's table → heading: SPR and PlayVirtual, and before them the baselines that have runs here."""
    run = {name_in_paper(setting.method) for setting in section.runs}
    baselines = {name: title for name, title in PAPER_BASELINES.items() if name in run}
    table = paper_scores(section.family, section.steps)
    return {name: f"{title}, paper" for name, title in {**baselines, **PAPER_METHODS}.items() if name in table}


def published_table(section: Section) -> Table | None:
    """All of the paper's own table on the tasks of the section, the methods that are not built here first."""
    table = paper_scores(section.family, section.steps)
    if section.suite is None:
        return None
    titles = {**WORLD_MODELS, **PAPER_BASELINES, **PAPER_METHODS}
    shown = {name: title for name, title in titles.items() if name in table}
    names = [task.partition("/")[2] for task in section.tasks]
    rows = [(task, *(number(table[name].get(task)) for name in shown)) for task in names if task in table["spr"]]
    alone = ", ".join(heading for name, heading in WORLD_MODELS.items() if name in table)
    note = f"As printed in the paper. {alone}: published numbers alone, not built here. All others can be run."
    caption = f"{section.title}: the paper's table"
    return Table(f"{section.key}-published", caption, ("task", *shown.values()), rows, note=note) if rows else None


def score_table(section: Section) -> Table:
    """Task by task: mean ± standard deviation over seeds, beside random play, the human and the paper."""
    table, stds = paper_scores(section.family, section.steps), paper_stds(section.family, section.steps)
    paper = paper_methods(section)
    atari = section.family == "atari"
    quiet = [*(["random", "human"] if atari else []), *paper.values()]
    rows, strong = [], set()
    for r, task in enumerate(section.tasks):
        name = task.partition("/")[2]
        ends = [published.random().get(name), published.human().get(name)] if atari else []
        cells = [number(value) for value in ends]
        for method in paper:
            cells.append(with_spread(table[method].get(name), stds.get(method, {}).get(name)))
        own = [section.scores(setting, task) for setting in section.runs]
        best = max((float(np.mean(values)) for values in own if values), default=0.0)
        for c, values in enumerate(own, 1 + len(cells)):
            if values and sum(map(bool, own)) > 1 and float(np.mean(values)) == best:
                strong.add((r, c))
        rows.append((name or task, *cells, *map(_seeds, own)))
    columns = ("task", *quiet, *(setting.name for setting in section.runs))
    note = "Mean ± standard deviation over seeds (number of seeds). Bold: the highest mean of the runs here."
    note += section.unlike_paper
    caption = f"{section.title}: scores"
    return Table(f"{section.key}-scores", caption, columns, rows, strong, set(range(1, 1 + len(quiet))), note)


def hns_table(section: Section) -> Table | None:
    """Atari's scores as percentages between random play and the human player."""
    games = [task for task in section.tasks if section.normalised(task, [0.0]) is not None]
    if section.family != "atari" or not games:
        return None
    rows = []
    for task in games:
        values = [section.normalised(task, section.scores(s, task)) for s in section.runs]
        rows.append(
            (
                task.partition("/")[2],
                *(f"{100 * v.mean():.1f}".replace("-", "−") if v is not None and v.size else "—" for v in values),
            )
        )
    columns = ("task", *(setting.name for setting in section.runs))
    return Table(f"{section.key}-hns", f"{section.title}: human-normalised scores, %", columns, rows)


def std_table(section: Section) -> Table | None:
    """Standard deviations over seeds, game by game, beside the paper's of its baseline and of PlayVirtual."""
    if section.suite != "atari100k":
        return None
    paper = published.atari_stds()
    rows = []
    for task in section.tasks:
        name = task.partition("/")[2]
        own = [section.scores(setting, task) for setting in section.runs]
        printed = [number(paper[method].get(name)) for method in PAPER_STDS]
        rows.append((name, *printed, *map(_std, own)))
    columns = ("task", *PAPER_STDS.values(), *(setting.name for setting in section.runs))
    note = "Over seeds (number of seeds; the paper's 15); — where there is one seed or none. The paper's baseline is "
    note += (
        "SPR as its authors ran it again, K = 9; the scores of SPR above are from SPR's own paper."
        + section.unlike_paper
    )
    caption = f"{section.title}: standard deviations"
    return Table(f"{section.key}-std", caption, columns, rows, quiet={1, 2}, note=note)


def aggregate_table(section: Section) -> Table | None:
    """IQM, median, mean and optimality gap with 95 % intervals; the paper's on the same tasks below."""
    settings, tasks = section.compared
    if not settings:
        return None
    rows, strong = [], set()
    for setting in settings:
        runs = section.matrix(setting).shape[0]
        cells = [interval(section.estimate(statistic, setting)) for statistic in STATISTICS.values()]
        rows.append((setting.name, f"{len(tasks)} × {runs}", *cells))
    points = np.array([[float(f(section.matrix(s))) for f in STATISTICS.values()] for s in settings])
    if len(settings) > 1:
        best = [*points[:, :3].argmax(axis=0), points[:, 3].argmin()]
        strong = {(int(row), column) for column, row in enumerate(best, 2)}
    for method, label in paper_methods(section).items():
        if (scores := section.published(method)) is not None:
            shown = [f"{float(f(scores)):.3f}" for f in (st.median, st.mean)]
            rows.append((label, counted(len(tasks), "mean"), "—", *shown, "—"))
    columns = ("setting", "tasks × runs", *STATISTICS)
    return Table(
        f"{section.key}-aggregates", f"{section.title}: aggregates", columns, rows, strong, note=_scope(section)
    )


def has_intervals(section: Section) -> bool:
    """Whether a compared setting has two runs of a task, which an interval takes."""
    return any(section.matrix(setting).shape[0] > 1 for setting in section.compared[0])


def _scope(section: Section) -> str:
    """The note of the aggregates: their scale, intervals, and what they leave out."""
    settings, tasks = section.compared
    intervals = "In brackets: 95 % stratified bootstrap intervals over seeds, 2,000 repetitions."
    text = f"Scale: {section.scale}. {intervals if has_intervals(section) else NO_INTERVAL}"
    if section.suite and len(tasks) < len(whole := suite_tasks(section.suite)):
        text += f" These are {len(tasks)} of the suite's {len(whole)} tasks: not the paper's aggregate."
    left = [setting.name for setting in section.runs if setting not in settings]
    if left:
        text += f" Left out, because they lack some of these tasks: {'; '.join(left)}."
    if beyond := [shown for setting in settings if (shown := _beyond(section, setting))]:
        text += f" Left out, because other tasks of the setting have fewer seeds: {'; '.join(beyond)}."
    return text + section.unlike_paper


def _beyond(section: Section, setting: Setting) -> str:
    """As in "2 of 4 runs of spr": the seeds of some tasks that the matrix of the setting has no room for."""
    runs = sum(len(section.scores(setting, task)) for task in section.compared[1])
    left = runs - section.matrix(setting).size
    return f"{left} of {runs} runs of {setting.name}" if left else ""


def pairs(section: Section) -> list[Comparison]:
    """The probabilities of improvement of the first MAX_PAIRS pairs that can be compared."""
    compared = []
    for x, y, tasks in _comparable(section)[:MAX_PAIRS]:
        ours, theirs = section.score_matrix(x, tasks), section.score_matrix(y, tasks)
        estimate = st.bootstrap(st.probability_of_improvement, ours, theirs)
        if min(len(ours), len(theirs)) < 2:  # the runs of the other side alone would be drawn anew
            estimate = Estimate(*[estimate.point] * 3)
        compared.append(Comparison(x, y, estimate, len(tasks), (len(ours), len(theirs))))
    return compared


def _comparable(section: Section) -> list[tuple[Setting, Setting, list[str]]]:
    """Each method and the earlier ones of its preset, with the tasks that both have run.

    PlayVirtual over SPR comes first, then what has the most common tasks, and among those with as many the pairs of one
    preset and those of PlayVirtual: the order of scores needs no common scale and no whole suite. Across presets a
    setting is compared only with itself: if the method differed too, either could be the cause.
    """
    settings = list(section.runs)
    found = [(x, y, section.shared_tasks(x, y)) for n, y in enumerate(settings) for x in settings[n + 1 :]]
    found = [
        (x, y, tasks)
        for x, y, tasks in found
        if tasks and (x.preset == y.preset or (x.method, x.changed) == (y.method, y.changed))
    ]

    def rank(pair: tuple[Setting, Setting, list[str]]) -> tuple[bool, int, bool, bool, bool]:
        x, y, tasks = pair
        ours, base = _is(x, "playvirtual"), _is(y, "spr")
        return not (ours and base), -len(tasks), x.preset != y.preset, not ours, not base

    return sorted(found, key=rank)


def improvement_table(section: Section, compared: Sequence[Comparison]) -> Table | None:
    """The probability of improvement of each pair, with a reading of its interval."""
    if not compared:
        return None
    rows = [
        (f"{c.x.name} over {c.y.name}", f"{c.tasks} × {c.runs_shown}", interval(c.estimate), verdict(c))
        for c in compared
    ]
    note = "The probability that a run of the first scores higher than one of the second on the same task, ties half. "
    note += "Each pair is compared on the tasks that both have."
    if any(c.each[0] != c.each[1] for c in compared):
        note += " Two numbers of runs are those of the first and of the second."
    if beyond := _with_more_seeds(section, compared):
        note += f" Left out, because other tasks of the setting have fewer seeds: runs of {'; '.join(beyond)}."
    if (left := len(_comparable(section)) - MAX_PAIRS) > 0:
        note += f" Left out: {counted(left, 'pair')}, none with more common tasks than the last."
    caption = f"{section.title}: probability of improvement"
    columns = ("pair", "tasks × runs", "probability", "reading")
    return Table(f"{section.key}-improvement", caption, columns, rows, note=note)


def _with_more_seeds(section: Section, compared: Sequence[Comparison]) -> list[str]:
    """The settings that have more runs of some tasks of a pair than are compared."""
    found: dict[str, None] = {}
    for c in compared:
        for setting, runs in zip((c.x, c.y), c.each, strict=True):
            if any(len(section.scores(setting, task)) > runs for task in section.shared_tasks(c.x, c.y)):
                found[setting.name] = None
    return list(found)


def verdict(comparison: Comparison) -> str:
    """The reading of a probability of improvement that its interval and the number of runs allow.

    If all runs of one side beat all of the other, every bootstrap sample says the same, however few runs there are. So
    a side is better only where that would happen to equal settings in at most one of twenty cases: with four runs of
    one task, three of two, two of three.
    """
    if comparison.runs < 2:
        return "one run of a task: no interval"
    if 2 / math.comb(2 * comparison.runs, comparison.runs) ** comparison.tasks > 1 - CONFIDENCE:
        return "too few runs to tell"
    if comparison.estimate.low > 0.5:
        return "better"
    return "worse" if comparison.estimate.high < 0.5 else "not told apart by these runs"


def time_table(section: Section) -> Table | None:
    """Wall-clock time of a run and its shares."""
    rows = []
    paper = _paper_ratios(section.family)
    bases = {s.preset: _seconds(section, s) for s in section.runs if _is(s, "spr")}
    for setting, tasks in section.runs.items():
        timed = [run for seeds in tasks.values() for run in seeds.values() if run.timing.get("seconds")]
        if not timed:
            continue
        spent = [run.timing["seconds"] for run in timed]
        shares = []
        for part in ("environment", "update", "evaluation"):
            shares.append(f"{100 * sum(run.timing.get(part, 0.0) for run in timed) / sum(spent):.0f} %")
        mine, base = _seconds(section, setting), bases.get(setting.preset)
        ratio = f"{mine / base:.2f}" if mine and base else "—"
        rate = sum(run.reached for run in timed) / sum(spent)
        one, in_all = duration(float(np.mean(spent))), duration(sum(spent))
        ratios = (ratio, "—" if setting.changed else paper.get(setting.method, "—")) if paper else (ratio,)
        rows.append((setting.name, str(len(timed)), one, f"{rate:,.0f}", *shares, *ratios, in_all))
    last = ("time / spr", "paper", "in all") if paper else ("time / spr", "in all")
    columns = ("setting", "runs", "one run", "steps/s", "environment", "update", "evaluation", *last)
    note = (
        "Runs that shared a machine slowed each other down. The ratio is to SPR under the same preset and is given "
        "where both have every task."
    )
    caption, quiet = f"{section.title}: time", {columns.index("paper")} if paper else set()
    return Table(f"{section.key}-time", caption, columns, rows, quiet=quiet, note=note) if rows else None


def _paper_ratios(family: str) -> dict[str, str]:
    """Method → the paper's training time over that of SPR, {} where the paper has none."""
    longer = [a for a in published.analyses() if (a.analysis, a.task) == ("training_time_overhead_pct", family)]
    return {a.method: f"{1 + a.value / 100:.2f}" for a in longer}


def _is(setting: Setting, method: str) -> bool:
    """Whether the setting is this method without changes."""
    return setting.method == method and not setting.changed


def _seconds(section: Section, setting: Setting) -> float | None:
    """Mean over tasks of the mean time of a run."""
    runs = section.runs[setting].values()
    means = [np.mean([run.timing.get("seconds", np.nan) for run in seeds.values()]) for seeds in runs]
    value = float(np.mean(means)) if means and len(means) == len(section.tasks) else float("nan")
    return value if np.isfinite(value) else None


def interval(estimate: Estimate, scale: float = 1.0, digits: int = 3) -> str:
    """As in "0.512 [0.480, 0.544]"; the point alone where one run leaves no interval."""
    point, low, high = (float(value) * scale for value in estimate)
    text = f"{point:.{digits}f}" + (f" [{low:.{digits}f}, {high:.{digits}f}]" if low != high else "")
    return text.replace("-", "−")


def number(value: float | None) -> str:
    """Three significant digits below ten, one decimal below a thousand, none above."""
    if value is None:
        return "—"
    magnitude = abs(value)
    digits = 2 if magnitude < 10 else 1 if magnitude < 1000 else 0
    return f"{value:,.{digits}f}".replace("-", "−")


def with_spread(mean: float | None, std: float | None) -> str:
    """As in "12.3 ± 4.5"."""
    return number(mean) if mean is None or std is None else f"{number(mean)} ± {number(std)}"


def _seeds(scores: list[float]) -> str:
    if not scores:
        return "—"
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return f"{with_spread(float(np.mean(scores)), spread)} ({len(scores)})"


def _std(scores: list[float]) -> str:
    return f"{number(float(np.std(scores, ddof=1)))} ({len(scores)})" if len(scores) > 1 else "—"
