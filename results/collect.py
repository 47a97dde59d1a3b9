"""Gathers the complete runs in results/FAMILY/runs: run it after a run is added and the family's report is made anew.

    python results/collect.py

Writes every evaluation episode to results/FAMILY/returns.csv, with the commit that results/FAMILY/provenance.toml names
for the run; the score of every run of the paper's benchmarks, and the reports' aggregates and comparisons of them, to
the tables of docs/results.md; and the scores of the paper's method at its own settings to the table that README.md and
docs/index.md open with.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from playvirtual import files, published
from playvirtual.errors import InputError
from playvirtual.runs import jsonl
from playvirtual.runs.folder import RunFolder
from playvirtual.study.report import records
from playvirtual.study.report.sections import SAME_EXPERIMENT, paper_scores, paper_stds, sections
from playvirtual.study.report.tables.score_tables import aggregate_table, improvement_table, pairs, with_spread
from playvirtual.study.scores import name_in_paper
from playvirtual.study.settings import changes

ROOT = Path(__file__).parent
PAGE = ROOT.parent / "docs" / "results.md"
OPENINGS = (ROOT.parent / "README.md", ROOT.parent / "docs" / "index.md")
BENCHMARKS = {"atari": "Atari-100k", "dmc": "DMControl-100k"}
REPORTED = ("aggregates", "improvement")  # tables of a benchmark's report that docs/results.md repeats
COLUMNS = ("task", "method", "preset", "seed", "options", "step", "episode", "return", "version", "seconds")
HEADER = ("task", "method", "preset", "seed", "score", "paper", "minutes", "commit")


@dataclass(frozen=True)
class CompleteRun:
    """A run that reached its last evaluation, and the commit that made it."""

    config: dict[str, Any]
    evaluations: list[dict[str, Any]]
    seconds: float
    commit: str

    @property
    def options(self) -> str:
        """What differs from the defaults of the task, method and preset, as in "precision=tf32"."""
        return " ".join(f"{name}={value}" for name, value in changes(self.config).items())


def complete_runs(family: Path) -> list[CompleteRun]:
    """All runs in family/runs; ends the process if one of them is not complete or of no known commit."""
    groups = files.read_toml(family / "provenance.toml", "provenance").get("group", [])
    commits = {run: g["commit"] for g in groups for pattern in g["runs"] for run in family.glob(pattern)}
    found = []
    for path in sorted(file.parent for file in (family / "runs").rglob("config.json")):
        config, (evaluations, damaged) = RunFolder(path).record(), jsonl.read(path, "evaluations", ["mean"])
        timing = jsonl.last(path, "timing")
        if damaged or "seconds" not in timing:
            lines = f"evaluations.jsonl: lines {damaged}" if damaged else "timing.jsonl"
            raise SystemExit(f"{path}: {lines}: not records of a run; allowed: undamaged logs, as the run wrote them")
        if not evaluations or evaluations[-1]["step"] < config["steps"]:
            raise SystemExit(f"{path}: not complete; allowed: complete runs, others belong in {family / 'cut-short'}")
        if path not in commits:
            raise SystemExit(f"{path}: {family / 'provenance.toml'} does not name it")
        found.append(CompleteRun(config, evaluations, timing["seconds"], commits[path]))
    return found


def write_returns(runs: list[CompleteRun], file: Path) -> None:
    """One line for each evaluation episode of each run."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in runs:
            named = [run.config[name] for name in ("task", "method", "preset", "seed")]
            for evaluation in run.evaluations:
                for episode, value in enumerate(evaluation["returns"]):
                    row = (run.options, evaluation["step"], episode, f"{value:.10g}", run.commit, run.seconds)
                    writer.writerow([*named, *row])


def score_table(runs: list[CompleteRun]) -> str:
    """A Markdown row per run: its last evaluation beside the paper's score of the same method and settings."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{' --- |' * len(HEADER)}"]
    for run in runs:
        family, _, task = run.config["task"].partition("/")
        method, changed = run.config["method"], changes(run.config)
        steps = run.config["steps"] if "steps" in changed else None
        tables = (paper_scores(family, steps), paper_stds(family, steps))
        same = changed.keys() <= SAME_EXPERIMENT | {"steps"}
        paper = (table.get(name_in_paper(method), {}).get(task) if same else None for table in tables)
        returns = run.evaluations[-1]["returns"]
        cells = (
            task,
            f"`{method}`" + (f", {run.options}" if run.options else ""),
            run.config["preset"],
            str(run.config["seed"]),
            _unbroken(with_spread(float(np.mean(returns)), float(np.std(returns)))),
            _unbroken(with_spread(*paper)),
            f"{run.seconds / 60:.1f}",
            run.commit,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _unbroken(score: str) -> str:
    """A score with its spread, which a narrow column must not break."""
    return score.replace(" ", "\N{NO-BREAK SPACE}")


def headline_table(runs: list[CompleteRun]) -> str:
    """A Markdown row per task of the paper's benchmarks: `playvirtual` at the paper's settings, all its seeds."""
    lines = ["| | here | runs | paper | random play | minutes a run |", f"|{' --- |' * 6}"]
    own = [r for r in runs if r.config["method"] == "playvirtual" and r.config["preset"] == "paper" and not r.options]
    for task in dict.fromkeys(run.config["task"] for run in own):
        group = [run for run in own if run.config["task"] == task]
        family, _, name = task.partition("/")
        scores = [float(np.mean(run.evaluations[-1]["returns"])) for run in group]
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        paper = (table(family, None).get("playvirtual", {}).get(name) for table in (paper_scores, paper_stds))
        random = published.random()[name] if family == "atari" else None
        minutes = sorted(run.seconds / 60 for run in group)
        cells = (
            f"{BENCHMARKS[family]}: {name.replace('_', ' ')}",
            f"**{with_spread(float(np.mean(scores)), spread)}**",
            str(len(group)),
            with_spread(*paper),
            with_spread(random, None),
            f"{minutes[0]:.0f}" if len(minutes) == 1 else f"{minutes[0]:.0f} to {minutes[-1]:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reported_table(family: str, name: str) -> str:
    """A table of the report of a benchmark, without its caption."""
    return _table_file(ROOT / family, name).read_text(encoding="utf-8").partition("\n\n")[2].strip()


def check_report(family: Path) -> None:
    """Ends the process if the report in family/report has another aggregate or comparison than family/runs gives."""
    section = next(s for s in sections(records.collect([family / "runs"])[0]) if s.key == family.name)
    tables = {"aggregates": aggregate_table(section), "improvement": improvement_table(section, pairs(section))}
    for name in REPORTED:
        file, table = _table_file(family, name), tables[name]
        if table is not None and (not file.exists() or file.read_text(encoding="utf-8") != table.markdown()):
            raise SystemExit(
                f"{file}: not of the runs in {family / 'runs'}; allowed: after `playvirtual report` of them"
            )


def _table_file(family: Path, name: str) -> Path:
    return family / "report" / "tables" / f"{family.name}-{name}.md"


def fill(text: str, name: str, table: str) -> str:
    """The page with the table between the comments `<!-- NAME -->` and `<!-- end -->`, if it has them."""
    return re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{table}\n{m[2]}", text, flags=re.DOTALL)


def main() -> None:
    page, shown = PAGE.read_text(encoding="utf-8"), []
    for family in sorted(file.parent for file in ROOT.glob("*/provenance.toml")):
        runs = complete_runs(family)
        write_returns(runs, family / "returns.csv")
        page = fill(page, family.name, score_table(runs))
        print(f"{family / 'returns.csv'}: {len(runs)} runs")
        if family.name in BENCHMARKS:
            check_report(family)
            shown += runs
            for name in REPORTED:
                page = fill(page, f"{family.name}-{name}", reported_table(family.name, name))
    PAGE.write_text(page, encoding="utf-8")
    for opening in OPENINGS:
        text = opening.read_text(encoding="utf-8")
        opening.write_text(fill(text, "headline", headline_table(shown)), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
