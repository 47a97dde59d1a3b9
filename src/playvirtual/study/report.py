"""From run folders to one page: tables beside the paper's, statistics, plots, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

import matplotlib
from matplotlib.figure import Figure

from playvirtual.errors import writing
from playvirtual.study import completeness, plots, score_tables
from playvirtual.study.ablation_tables import ablation_tables
from playvirtual.study.analysis_tables import analysis_tables
from playvirtual.study.complexity_table import complexity_table
from playvirtual.study.duration import duration
from playvirtual.study.records import Problem, Record, collect
from playvirtual.study.sections import Comparison, Section, sections
from playvirtual.study.settings import setting_name
from playvirtual.study.tables import Table

FOLDERS = {"tables": (".csv", ".md", ".tex"), "plots": (".png", ".svg")}


@dataclass(frozen=True)
class Written:
    """The finished page and, in a line or two, what went into it."""

    page: Path
    summary: str


class Page:
    """Collects the parts of the page and writes tables and plots beside it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.parts: list[str] = []
        self.contents: list[str] = []
        self.findings: list[str] = []
        again = (out / "index.html").is_file()
        for name, endings in FOLDERS.items():
            (out / name).mkdir(parents=True, exist_ok=True)
            for file in (out / name).iterdir() if again else ():  # an earlier report may have been of other runs
                if file.suffix in endings:
                    file.unlink()

    def heading(self, key: str, title: str) -> None:
        self.contents.append(f'<a href="#{key}">{escape(title)}</a>')
        self.parts.append(f'<h2 id="{key}">{escape(title)}</h2>')

    def text(self, words: str) -> None:
        self.parts.append(f"<p>{escape(words)}</p>")

    def table(self, table: Table | None) -> None:
        if table is not None:
            table.save(self.out / "tables")
            self.parts.append(table.html())

    def plot(self, name: str, figure: Figure | None, caption: str, *, narrow: bool = False) -> None:
        if figure is not None:
            svg = plots.write(figure, self.out / "plots" / name)
            svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
            kind = "plot narrow" if narrow else "plot"
            words = f"<figcaption>{escape(caption)}</figcaption>"
            self.parts.append(f'<figure class="{kind}"><div class=scroll>{svg}</div>{words}</figure>')


def report(roots: Sequence[Path], out: Path, title: str = "Study report") -> Written:
    """Writes OUT/index.html, OUT/tables and OUT/plots from all runs below `roots`; unusable ones are named in it."""
    records, problems = collect(roots)
    with writing("out", out):
        page = _write(records, problems, out, title)
    return Written(page, completeness.summary(records, problems))


def _write(records: Sequence[Record], problems: Sequence[Problem], out: Path, title: str) -> Path:
    """Everything that the report consists of; returns its page."""
    page, found = Page(out), sections(records)
    with matplotlib.rc_context(plots.STYLE):
        for section in found:
            _write_section(page, section)
    _write_ablations(page, found)
    _write_analyses(page, found)
    _write_time(page, found)
    _write_rest(page, records, problems, found)
    target = out / "index.html"
    target.write_text(_fill(page, title, records, problems), encoding="utf-8", errors="replace")
    return target


def _write_section(page: Page, section: Section) -> None:
    page.heading(section.key, section.title)
    if section.common:
        changed = setting_name("", "paper", section.common).removeprefix(", ")
        page.text(f"Changed from the defaults in every run of this section: {changed}.")
    if not section.runs:
        page.text("No run of this section is finished yet.")
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
        caption = f"{section.title}: aggregates with 95 % stratified bootstrap intervals."
        page.plot(f"{section.key}-aggregates", plots.interval_plot(section, names), caption)
    page.table(score_tables.score_table(section))
    page.table(score_tables.hns_table(section))
    caption = "Learning curves: mean over seeds, shaded ± one standard deviation."
    page.plot(f"{section.key}-curves", plots.curve_plot(section), f"{caption} {_curve_source(section)}")
    if aggregates is not None:
        caption = "Performance profiles: the share of runs above each score, with 95 % bands."
        page.plot(f"{section.key}-profiles", plots.profile_plot(section), caption, narrow=True)
    if compared:
        page.table(score_tables.improvement_table(section, compared))
        caption = "Probability of improvement with 95 % intervals; right of the dashed line the first is better."
        page.plot(f"{section.key}-improvement", plots.improvement_plot(compared, section), caption, narrow=True)


def _curve_source(section: Section) -> str:
    """Whether the curves show evaluations or training episodes."""
    runs = [run for tasks in section.runs.values() for seeds in tasks.values() for run in seeds.values()]
    evaluated = sum(len(run.evaluations) > 2 for run in runs)
    if evaluated == len(runs):
        return "Evaluations."
    return (
        "Returns of training episodes." if not evaluated else "Evaluations, or training episodes where there are few."
    )


def _findings(section: Section, compared: Sequence[Comparison]) -> list[str]:
    """One sentence per main comparison, as strong as its interval allows."""
    found = []
    for comparison in compared[:2]:
        x, y = comparison.x.name, comparison.y.name
        words = {"better": "is better than", "worse": "is worse than"}.get(score_tables.verdict(comparison))
        if comparison.runs == 1:
            found.append(f"{section.title}: one run of a task is too few to tell {x} and {y} apart.")
            continue
        outcome = f"{x} {words} {y}" if words else f"these runs do not tell {x} and {y} apart"
        chance = score_tables.interval(comparison.estimate, digits=2)
        found.append(
            f"{section.title}: {outcome}; probability of improvement {chance} with {comparison.runs} runs of a task."
        )
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
    page.parts.append(completeness.missing_html(problems, found))
    page.heading("provenance", "Provenance")
    page.table(completeness.version_table(records))
    page.parts.append(completeness.runs_html(records, page.out))


def _fill(page: Page, title: str, records: Sequence[Record], problems: Sequence[Problem]) -> str:
    finished = [record for record in records if record.finished]
    spent = sum(record.timing.get("seconds", 0.0) for record in records)
    facts = {
        "finished runs": f"{len(finished)}",
        "unfinished": f"{len(records) - len(finished)}",
        "unusable folders": f"{sum(problem.kind == 'unusable' for problem in problems)}",
        "tasks": f"{len({record.task for record in records})}",
        "seeds": f"{len({record.seed for record in records})}",
        "time of all runs": duration(spent) if spent else "not recorded",
    }
    findings = [f"<li>{escape(text)}</li>" for text in page.findings]
    if len(finished) < len(records) or any(problem.kind != "double" for problem in problems):
        text = f"Incomplete: {completeness.summary(records, problems)}"
        findings.append(f'<li class=missing>{escape(text)} <a href="#missing">What is missing</a></li>')
    template = Template(files("playvirtual.study").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        facts="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()),
        contents=" ".join(page.contents),
        findings="".join(findings),
        body="\n".join(page.parts),
        version=escape(_version()),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _version() -> str:
    try:
        return version("playvirtual")
    except PackageNotFoundError:
        return "(not installed)"
