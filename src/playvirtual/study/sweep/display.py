"""The display of a running sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from playvirtual.messages import counted, duration, plural
from playvirtual.runs import jsonl
from playvirtual.study.sweep.grids import Job
from playvirtual.study.sweep.sweep import Display, Result

PLAIN_EVERY = 30.0  # seconds between two lines of progress without a terminal


def display() -> Display:
    """The display for this process's stdout."""
    return LiveTable() if sys.stdout.isatty() else PlainLines()


class _Count:
    """Counts of all, finished, failed and running runs, and the time since the start."""

    def __init__(self) -> None:
        self.total = self.done = self.skipped = self.failed = 0
        self.began = time.monotonic()
        self.running: dict[Path, Job] = {}

    def line(self, left: str = "") -> str:
        text = f"{self.skipped + self.done}/{self.total} {plural(self.total, 'run')} finished"
        text += f" ({self.skipped} before)" if self.skipped else ""
        text += f", {len(self.running)} running" if self.running else ""
        waiting = self.total - self.skipped - self.done - self.failed - len(self.running)
        text += f", {waiting} waiting" if waiting else ""
        text += f", {self.failed} failed" if self.failed else ""
        return f"{text}, {duration(time.monotonic() - self.began)}" + (f", {left}" if left else "")


class PlainLines:
    """Prints a line when a run starts or ends, and one every half minute."""

    def __init__(self) -> None:
        self._count, self._last = _Count(), time.monotonic()

    def begin(self, total: int, skipped: int) -> None:
        self._count.total, self._count.skipped = total, skipped
        print(f"sweep: {counted(total, 'run')}, {skipped} finished before", flush=True)

    def started(self, job: Job, attempt: int) -> None:
        self._count.running[job.path] = job
        print(f"started   {job.title}{'' if attempt == 1 else f'  (attempt {attempt})'}", flush=True)

    def ended(self, job: Job, error: str | None, *, again: bool) -> None:
        self._count.running.pop(job.path, None)
        self._count.done += error is None
        self._count.failed += error is not None and not again
        word = "finished " if error is None else "retrying " if again else "failed   "
        print(f"{word} {job.title}{f': {error}' if error else ''}", flush=True)

    def refresh(self, left: str) -> None:
        if time.monotonic() - self._last >= PLAIN_EVERY:
            self._last = time.monotonic()
            shown = ", ".join(f"{job.title} {100 * _share(job):.0f} %" for job in self._count.running.values())
            print(f"sweep: {self._count.line(left)}; {shown}", flush=True)

    def close(self) -> None:
        print(f"sweep: {self._count.line()}", flush=True)


class LiveTable:
    """Shows the running runs with their progress, and the latest errors."""

    def __init__(self) -> None:
        self._count = _Count()
        self._errors: list[str] = []
        self._live = Live(auto_refresh=False)
        self._drawn = 0.0

    def begin(self, total: int, skipped: int) -> None:
        self._count.total, self._count.skipped = total, skipped
        self._live.start()

    def started(self, job: Job, attempt: int) -> None:
        self._count.running[job.path] = job

    def ended(self, job: Job, error: str | None, *, again: bool) -> None:
        self._count.running.pop(job.path, None)
        self._count.done += error is None
        if error is not None:
            self._count.failed += not again
            self._errors.append(f"{'retrying' if again else 'failed'}  {job.title}: {error}")

    def refresh(self, left: str) -> None:
        if time.monotonic() - self._drawn >= 1.0:
            self._drawn = time.monotonic()
            self._live.update(self._render(left), refresh=True)

    def close(self) -> None:
        self._live.update(self._render(), refresh=True)
        self._live.stop()

    def _render(self, left: str = "") -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("task", "row", "seed", "progress", "steps"):
            table.add_column(name, no_wrap=True)
        for job in list(self._count.running.values())[:30]:
            share, c = _share(job), job.config
            bar = ProgressBar(total=1.0, completed=share, width=24)
            table.add_row(Text(c.task), Text(job.label), str(c.seed), bar, f"{share * c.steps:.0f}/{c.steps}")
        errors = [Text(line, style="red") for line in self._errors[-5:]]
        return Group(table, *errors, Text(self._count.line(left), style="bold"))


def outcome(result: Result, command: str) -> str:
    """The last lines of a sweep: the runs that failed, with their errors, and the command that resumes it."""
    lines = [f"failed: {path}: {error}" for path, error in result.failed.items()]
    if result.stopped_by:
        to_go = counted(len(result.waiting), "run")
        lines.append(f"stopped with {to_go} to go; resume with the same command: {command}")
    elif result.failed:
        failed, them = counted(len(result.failed), "run"), "it" if len(result.failed) == 1 else "them"
        lines.append(f"{failed} failed; the same command tries {them} again: {command}")
    return "\n".join(lines)


def _share(job: Job) -> float:
    """The share of the run's steps that its metrics show, 0 to 1."""
    return min(1.0, float(jsonl.last(job.path, "metrics").get("step", 0)) / job.config.steps)
