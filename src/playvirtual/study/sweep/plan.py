"""What a sweep would do, as text: the list of experiments, and the plan of one with the time it will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from playvirtual.messages import counted, duration
from playvirtual.study.sweep.experiments import EXPERIMENTS, SUITE_NAMES, Experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import sort_out
from playvirtual.study.sweep.time import Rate, Source, rates, steps_left


def experiments_text() -> str:
    """What `playvirtual list experiments` prints: every experiment, and what it needs beyond the sweep."""
    width = max(map(len, EXPERIMENTS))
    lines = []
    for e in EXPERIMENTS.values():
        lines.append(f"{e.name:<{width}}  {e.title} ({e.source}): {_settings_text(e)}")
        if e.probe:
            lines.append(f"{'':<{width}}  probes every finished run: playvirtual probe RUN {e.probe}")
        if e.preset != "paper":
            lines.append(f"{'':<{width}}  under preset {e.preset}, which the paper's numbers are of (--preset)")
        if e.needs:
            lines.append(f"{'':<{width}}  needs {e.needs}")
    return "\n".join([*lines, "", f"suites: {', '.join(SUITE_NAMES)}, or any tasks separated by commas"])


def _settings_text(experiment: Experiment) -> str:
    """As in "9 settings on atari100k, dmc100k"; suites with different numbers of settings are listed separately."""
    counts: dict[int, list[str]] = {}
    for name in experiment.suites:
        counts.setdefault(len(jobs(experiment, suite(name)[:1], 1, Path("runs"))), []).append(name)
    return "; ".join(f"{count} settings on {', '.join(names)}" for count, names in counts.items())


def plan(planned: Sequence[Job], workers: int | None) -> str:
    """The grid as text, how much of it is finished, and how long the rest will take as far as that is known."""
    finished, to_do, unreadable = sort_out(planned)
    known = rates(finished, to_do)
    rows: dict[tuple[str, str], list[Job]] = {}
    for job in planned:
        rows.setdefault((job.config.task, job.label), []).append(job)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "row", "seeds", "steps", "finished", "run folder", "time of one"):
        table.add_column(name, no_wrap=True)
    for (task, label), group in rows.items():
        rate = known.get((task, label))
        done = sum(job in finished for job in group)
        one = f"{duration(rate.seconds * group[0].config.steps)}, {rate.source}" if rate else "unknown"
        folder = str(group[0].path.parent)
        steps = f"{group[0].config.steps:,}"
        table.add_row(Text(task), Text(label), str(len(group)), steps, f"{done}/{len(group)}", Text(folder), one)
    console = Console(width=200, file=None)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    lines += [f"unreadable: {error}" for error in unreadable.values()]
    counts = f"{counted(len(planned), 'run')}, {len(finished)} finished"
    if unreadable:
        counts += f", {len(unreadable)} unreadable"
    rest = _estimate(to_do, known, workers) if to_do else "nothing else to do" if unreadable else "nothing to do"
    return "\n".join([*lines, "", f"{counts}; {rest}"])


def _estimate(to_do: Sequence[Job], known: Mapping[tuple[str, str], Rate], workers: int | None) -> str:
    measured = [(job, rate) for job in to_do if (rate := known.get((job.config.task, job.label)))]
    unknown = sorted({job.config.task for job in to_do} - {job.config.task for job, _ in measured})
    spent = sum(rate.seconds * steps_left(job) for job, rate in measured)
    at_once = min(workers or 1, len(to_do))
    text = f"{len(to_do)} to do"
    if measured:
        used = {rate.source for _, rate in measured}
        sources = ", ".join(source for source in get_args(Source) if source in used)
        text += f", about {duration(spent / at_once)} with {at_once} at a time, measured from {sources}"
    if unknown:
        text += f"; time unknown for {', '.join(unknown)}: no run of it here has been measured"
    return text
