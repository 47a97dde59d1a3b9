"""What a person sees while a run goes on."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Display(Protocol):
    def step(self, done: int, note: str) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A live bar for terminals: steps, rate, time left, the last return and evaluation."""

    def __init__(self, title: str, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._task = self._progress.add_task(title, total=total, note="", rate="")
        self._began, self._first = time.monotonic(), -1
        self._progress.start()

    def step(self, done: int, note: str) -> None:
        if self._first < 0:
            self._first = done
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        self._progress.update(self._task, completed=done, note=note, rate=f"{rate:.0f}/s")

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """One plain line every few seconds, for logs."""

    def __init__(self, title: str, total: int, every: float = 10.0) -> None:
        self._title, self._total, self._every = title, total, every
        self._began = self._last = time.monotonic()

    def step(self, done: int, note: str) -> None:
        now = time.monotonic()
        if now - self._last >= self._every or done >= self._total:
            self._last = now
            rate = done / max(now - self._began, 1e-9)
            print(f"{self._title}: {done}/{self._total} steps, {rate:.0f}/s, {note}", flush=True)

    def close(self) -> None:
        pass


class Silent:
    """Nothing at all."""

    def step(self, done: int, note: str) -> None:
        pass

    def close(self) -> None:
        pass


def display(title: str, total: int, *, quiet: bool) -> Display:
    """A bar on a terminal, plain lines elsewhere, nothing when `quiet`."""
    if quiet:
        return Silent()
    return Bar(title, total) if sys.stdout.isatty() else Lines(title, total)
