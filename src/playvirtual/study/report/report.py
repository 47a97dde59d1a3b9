"""From run folders to one page: tables beside the paper's, statistics, plots, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from playvirtual.errors import writing
from playvirtual.messages import counted, duration
from playvirtual.study.report import completeness, learning_curves, plots
from playvirtual.study.report.page import Page
from playvirtual.study.report.records import Problem, Record, collect
from playvirtual.study.report.sections import Comparison, Section, sections
from playvirtual.study.report.tables import score_tables
from playvirtual.study.report.tables.ablation_tables import ablation_tables
from playvirtual.study.report.tables.analysis_tables import analysis_tables, complexity_table
from playvirtual.study.report.tables.table import Table
from playvirtual.study.settings import setting_name

TITLE = "Study report"


@dataclass(frozen=True)
class Written:
    """The finished page, in one line how many runs it is of, and the folders that cannot be used."""

    page: Path
    summary: str
    unusable: list[Problem]


def report(roots: Sequence[Path], out: Path, title: str | None = None) -> Written:
    """Writes OUT/index.html, OUT/tables and OUT/plots from all runs below `roots`; unusable runs are named in it.

    Without a title it has that of the grid of one's own that all runs are of, if there is one.
    """
    records, problems = collect(roots)
    with writing("out", out):
        page = _write(records, problems, out, title or _grid_title(records) or TITLE)
    unusable = [problem for problem in problems if problem.kind == "unusable"]
    return Written(page, completeness.summary(records, problems), unusable)


def _grid_title(records: Sequence[Record]) -> str:
    """The title of the grid that all runs are of; "" if there is none."""
    titles = {record.grid.title if record.grid else "" for record in records}
    return titles.pop() if len(titles) == 1 else ""


def _write(records: Sequence[Record], problems: Sequence[Problem], out: Path, title: str) -> Path:
    """Writes all sections of the report and returns its page."""
    page, found = Page(out), sections(records)
    with matplotlib.rc_context(plots.STYLE):
        for section in found:
            _write_section(page, section)
    _write_ablations(page, found)
    _write_analyses(page, found)
    _write_time(page, found)
    _write_rest(page, records, problems, found)
    whole = all(record.finished for record in records) and all(problem.kind == "duplicate" for problem in problems)
    return page.write(title, _facts(records, problems), "" if whole else completeness.summary(records, problems))


def _write_section(page: Page, section: Section) -> None:
    page.heading(section.key, section.title)
    if section.common:
        changed = [setting_name("", "paper", part).removeprefix(", ") for part in section.common_parts]
        wheres = ("in every run of this section", "where the method of a run does not set it")
        text = "; ".join(f"{where}: {part}" for where, part in zip(wheres, changed, strict=True) if part)
        page.add("paragraph", text=f"Changed from the defaults {text}.")
    if rows := section.grid_rows:
        titles = sorted({record.grid.title for record in section.records if record.grid is not None})
        caption = f"Rows of {' and '.join(f'“{title}”' for title in titles)}"
        page.table(Table(f"{section.key}-rows", caption, ("row", "setting"), list(rows.items())))
    if not section.runs:
        page.add("paragraph", text="No run of this section is finished yet.")
        _write_curves(page, section)
        return
    compared = score_tables.pairs(section)
    page.findings += _findings(section, compared)
    aggregates = score_tables.aggregate_table(section)
    page.table(aggregates)
    if aggregates is not None:
        settings = section.compared[0]
        names = {
            name: {setting: section.estimate(statistic, setting) for setting in settings}
            for name, statistic in score_tables.STATISTICS.items()
        }
        intervals = score_tables.has_intervals(section)
        shown = " with 95 % stratified bootstrap intervals." if intervals else f". {score_tables.NO_INTERVAL}"
        caption = f"{section.title}: aggregates{shown}"
        page.plot(f"{section.key}-aggregates", plots.interval_plot(section, names), caption)
    page.table(score_tables.score_table(section))
    page.table(score_tables.hns_table(section))
    page.table(score_tables.std_table(section))
    page.table(score_tables.published_table(section))
    _write_curves(page, section)
    if aggregates is not None:
        shown = ", with 95 % bands." if score_tables.has_intervals(section) else f". {score_tables.NO_INTERVAL}"
        caption = f"Performance profiles: the share of runs above each score{shown}"
        page.plot(f"{section.key}-profiles", plots.profile_plot(section), caption, narrow=True)
    if compared:
        page.table(score_tables.improvement_table(section, compared))
        shown = " with 95 % intervals" if any(pair.runs > 1 for pair in compared) else ""
        caption = f"Probability of improvement{shown}; right of the dashed line the first is better."
        page.plot(f"{section.key}-improvement", plots.improvement_plot(compared, section), caption, narrow=True)


def _write_curves(page: Page, section: Section) -> None:
    page.plot(f"{section.key}-curves", learning_curves.curve_plot(section), learning_curves.curves_caption(section))
    page.plot(f"{section.key}-losses", learning_curves.loss_plot(section), learning_curves.loss_caption(section))
    page.table(completeness.stopped_table(section))


def _findings(section: Section, compared: Sequence[Comparison]) -> list[str]:
    """One sentence per main comparison, which says no more than its interval allows."""
    found = []
    for comparison in compared[:2]:
        x, y = comparison.x.name, comparison.y.name
        words = {"better": "is better than", "worse": "is worse than"}.get(score_tables.verdict(comparison))
        if comparison.runs == 1:
            found.append(f"{section.title}: one run of a task is too few to tell {x} and {y} apart.")
            continue
        outcome = f"{x} {words} {y}" if words else f"these runs do not tell {x} and {y} apart"
        chance = score_tables.interval(comparison.estimate, digits=2)
        each = " each" if comparison.each[0] == comparison.each[1] else ""
        extent = f"{counted(comparison.tasks, 'task')} with {comparison.runs_shown} runs{each}"
        found.append(f"{section.title}: {outcome}; probability of improvement {chance} on {extent}.")
    return found


def _write_ablations(page: Page, found: Sequence[Section]) -> None:
    tables = ablation_tables(found)
    if tables:
        page.heading("ablations", "Ablations")
        for table in tables:
            page.table(table)


def _write_analyses(page: Page, found: Sequence[Section]) -> None:
    tables = analysis_tables(found)
    if tables:
        page.heading("analyses", "Analyses")
        for table in tables:
            page.table(table)


def _write_time(page: Page, found: Sequence[Section]) -> None:
    page.heading("time", "Time and size")
    for section in found:
        page.table(score_tables.time_table(section))
    page.table(complexity_table(found))


def _write_rest(page: Page, records: Sequence[Record], problems: Sequence[Problem], found: Sequence[Section]) -> None:
    page.heading("missing", "What is missing")
    page.add("missing", listings=completeness.listings(problems, found), listed=completeness.LISTED)
    page.heading("provenance", "Provenance")
    page.table(completeness.version_table(records))
    page.add("runs", runs=completeness.run_rows(records, page.out))


def _facts(records: Sequence[Record], problems: Sequence[Problem]) -> dict[str, str]:
    """The numbers at the top of the page."""
    finished, early = completeness.counts(records)
    spent = sum(record.timing.get("seconds", 0.0) for record in records)
    return {
        "finished runs": f"{finished}",
        "unfinished": f"{len(records) - finished - early}",
        **({"stopped early": f"{early}"} if early else {}),
        "unusable folders": f"{sum(problem.kind == 'unusable' for problem in problems)}",
        "tasks": f"{len({record.task for record in records})}",
        "seeds": f"{len({record.seed for record in records})}",
        "time of all runs": duration(spent) if spent else "not recorded",
    }
