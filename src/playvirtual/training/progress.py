"""What a person sees while a run goes on."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

NOTE = "return -1000.0, score -1000.0"  # as long as one gets
SHORTEST, LONGEST_BAR = 10, 40  # of a title or a bar that still says something, and a bar that says all it can


class Display(Protocol):
    def begin(self, done: int) -> None:
        """The run starts, or goes on, with so many steps done: rates and times count from here."""
        ...

    def step(self, done: int, note: str) -> None: ...

    def close(self) -> None: ...


class Rate:
    """Steps per second over the last half minute: random play before learning is faster than what follows."""

    def __init__(self, done: int, window: float = 30.0) -> None:
        self._window = window
        self._seen = deque([(time.monotonic(), done)])

    def __call__(self, done: int) -> float:
        now = time.monotonic()
        if now - self._seen[-1][0] >= 0.5:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._window:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) / max(now - then, 1e-9)


def per_second(rate: float) -> str:
    """How people read a rate, large ones without an exponent: "0.42/s", "6050/s"."""
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


class Bar:
    """A live bar for terminals: steps, rate, time left, the last return and evaluation."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        console = console or Console()
        self._progress = Progress(*_columns(title, total, console.width), console=console)
        self._title, self._total = title, total

    def begin(self, done: int) -> None:
        self._rate = Rate(done)
        # Given here and not by an update, what an earlier process did does not count as this one's speed.
        self._task = self._progress.add_task(self._title, total=self._total, completed=done, note="", rate="")
        self._progress.start()

    def step(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note, rate=per_second(self._rate(done)))

    def close(self) -> None:
        self._progress.stop()


def _columns(title: str, total: int, width: int) -> list[ProgressColumn]:
    """What a terminal of that width has room for: steps, rate, time left and results always, the rest if it fits."""
    room = width - len(f" {total}/{total} 12345/s eta 0:00:00 {NOTE}")
    shown = title if len(title) <= room else f"{title[: room - 1]}…" if room >= SHORTEST else ""
    room -= len(shown) + 1
    columns: list[ProgressColumn] = [TextColumn(f"[bold]{escape(shown)}")] if shown else []
    columns += [BarColumn(min(room - 1, LONGEST_BAR))] if room > SHORTEST else []
    columns += [MofNCompleteColumn(), TextColumn("{task.fields[rate]}")]
    columns += [TimeElapsedColumn()] if room > LONGEST_BAR + len(" 0:00:00") else []
    return [*columns, TextColumn("eta"), TimeRemainingColumn(), TextColumn("{task.fields[note]}")]


class Lines:
    """One plain line every few seconds, for logs."""

    def __init__(self, title: str, total: int, every: float = 10.0) -> None:
        self._title, self._total, self._every = title, total, every

    def begin(self, done: int) -> None:
        self._last = time.monotonic()
        self._rate = Rate(done)

    def step(self, done: int, note: str) -> None:
        now, rate = time.monotonic(), self._rate(done)
        if now - self._last >= self._every or done >= self._total:
            self._last = now
            left = timedelta(seconds=round((self._total - done) / rate)) if rate > 0 else "?"
            parts = [f"{done}/{self._total} steps", per_second(rate), f"{left} left", *([note] if note else [])]
            print(f"{self._title}: {', '.join(parts)}", flush=True)

    def close(self) -> None:
        pass


class Silent:
    """Nothing at all."""

    def begin(self, done: int) -> None:
        pass

    def step(self, done: int, note: str) -> None:
        pass

    def close(self) -> None:
        pass


class Dispensable:
    """Another display until it cannot write (a full disk, a pipe that nobody reads), then nothing: the run goes on."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def begin(self, done: int) -> None:
        with self._until_it_fails():
            self._shown.begin(done)

    def step(self, done: int, note: str) -> None:
        with self._until_it_fails():
            self._shown.step(done, note)

    def close(self) -> None:
        with self._until_it_fails():
            self._shown.close()

    @contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._shown = Silent()


def display(title: str, total: int, *, quiet: bool) -> Display:
    """A bar on a terminal, plain lines elsewhere, nothing when `quiet` or where there is nothing to write to."""
    if quiet or sys.stdout is None:
        return Silent()
    return Dispensable(Bar(title, total) if sys.stdout.isatty() else Lines(title, total))
