"""What a sweep would do, in text: the grid, what is finished of it, and the time of the rest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from playvirtual.study.counted import counted
from playvirtual.study.duration import duration
from playvirtual.study.grids import Job
from playvirtual.study.sweep import sort_out
from playvirtual.training import journals


def plan(jobs: Sequence[Job], workers: int | None) -> str:
    """The grid as text, what is finished of it, and how long the rest will take as far as that is known."""
    finished, to_do, unreadable = sort_out(jobs)
    known = seconds_per_step(finished)
    rows: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        rows.setdefault((job.config.task, job.label), []).append(job)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "row", "seeds", "steps", "finished", "run folder", "time of one"):
        table.add_column(name, no_wrap=True)
    for (task, label), group in rows.items():
        rate = known.get(task)
        done = sum(job in finished for job in group)
        one = duration(rate * group[0].config.steps) if rate else "unknown"
        folder = str(group[0].path.parent)
        steps = f"{group[0].config.steps:,}"
        table.add_row(Text(task), Text(label), str(len(group)), steps, f"{done}/{len(group)}", Text(folder), one)
    console = Console(width=200, file=None)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    lines += [f"unreadable: {error}" for error in unreadable.values()]
    return "\n".join(
        [*lines, "", f"{counted(len(jobs), 'run')}, {len(finished)} finished; {_estimate(to_do, known, workers)}"]
    )


def _estimate(to_do: Sequence[Job], known: dict[str, float], workers: int | None) -> str:
    if not to_do:
        return "nothing to do"
    unknown = sorted({job.config.task for job in to_do if job.config.task not in known})
    spent = sum(known.get(job.config.task, 0.0) * job.config.steps for job in to_do)
    at_once = min(workers or 1, len(to_do))
    text = f"{len(to_do)} to do"
    if spent:
        text += f", about {duration(spent / at_once)} with {at_once} at a time, measured from finished runs"
    if unknown:
        text += f"; time unknown for {', '.join(unknown)}: no finished run of it here"
    return text


def seconds_per_step(finished: Sequence[Job]) -> dict[str, float]:
    """Task → mean seconds per step of its finished runs, where they recorded their time."""
    rates: dict[str, list[float]] = {}
    for job in finished:
        line = journals.last(job.path, "timing")
        if line.get("seconds") and line.get("step"):
            rates.setdefault(job.config.task, []).append(float(line["seconds"]) / float(line["step"]))
    return {task: sum(values) / len(values) for task, values in rates.items()}
