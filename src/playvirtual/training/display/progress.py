"""The progress display of a run: a live bar on terminals, plain lines in logs."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

LONGEST_NOTE = "return -1000.0, score -1000.0"
SETTLED = 5.0  # seconds of learning after which its own rate tells the time left
SHORTEST, LONGEST_BAR = 10, 40  # characters: the shortest useful title or bar, and the longest bar


class Display(Protocol):
    """Shows how many steps of a run are done."""

    def begin(self, done: int, pace: Pace | None = None) -> None:
        """The run starts or resumes after `done` steps: rates and times count from here."""
        ...

    def step(self, done: int, note: str) -> None:
        """`done` steps are done; the note has the newest results."""
        ...

    def evaluation(self, ended: int, episodes: int, steps: int) -> None:
        """So many of an evaluation's episodes have ended; its envs have taken `steps` steps together."""
        ...

    def close(self) -> None: ...


class Pace(NamedTuple):
    """What is known of a run's time before it begins, in the steps that a display counts."""

    learning_starts: int  # steps of random play, which are faster than those that follow
    seconds_per_step: float | None = None  # of a step with its updates, if that was measured


class Rate:
    """Steps per second over the last half minute."""

    def __init__(self, done: int, window: float = 30.0, now: Callable[[], float] = time.monotonic) -> None:
        self._window, self._now = window, now
        self._seen = deque([(now(), done)])
        self._paused = 0.0  # since when; 0: it is not

    def pause(self) -> None:
        """The time until the next call is not one of training."""
        self._paused = self._paused or self._now()

    def __call__(self, done: int) -> float:
        now = self._now()
        if self._paused:
            self._seen = deque((then + now - self._paused, before) for then, before in self._seen)
            self._paused = 0.0
        if now - self._seen[-1][0] >= 0.5:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._window:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) / max(now - then, 1e-9)


class TimeLeft:
    """The present rate, and the seconds left: those of learning are never told from the rate of random play.

    While the run plays at random they are told from `pace`; None where that was not measured.
    """

    def __init__(self, total: int, done: int, pace: Pace | None, now: Callable[[], float] = time.monotonic) -> None:
        self._total, self._now = total, now
        self._pace = pace or Pace(0)
        self._rate = Rate(done, now=now)
        self._learned_since = -math.inf if done >= self._pace.learning_starts else None

    def pause(self) -> None:
        """The time until the next call is not one of training."""
        self._rate.pause()

    def __call__(self, done: int) -> tuple[float, float | None]:
        rate, (starts, measured) = self._rate(done), self._pace
        if self._learned_since is None and done > starts:  # the rate of random play is forgotten
            self._learned_since, self._rate = self._now(), Rate(done, now=self._now)
        if self._learned_since is None:
            if measured is None or rate <= 0:
                return rate, None
            return rate, (starts - done) / rate + (self._total - starts) * measured
        if measured is not None and self._now() - self._learned_since < SETTLED:
            return rate, (self._total - done) * measured
        return rate, (self._total - done) / rate if rate > 0 else None


def time_left(seconds: float | None) -> str:
    """The seconds as hours, minutes and seconds; as rich shows it where they are not known."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))


def per_second(rate: float) -> str:
    """A rate as plain text, large ones without an exponent: "0.42/s", "6050/s"."""
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


class Bar:
    """A live bar for terminals: steps, rate, time left, the last return and evaluation."""

    def __init__(
        self,
        title: str,
        total: int,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or Console()
        self._progress = Progress(*_columns(title, total, console.width), console=console)
        self._title, self._total, self._now = title, total, now
        self._evaluation: TaskID | None = None  # the row of an evaluation, while there is one

    def begin(self, done: int, pace: Pace | None = None) -> None:
        self._left = TimeLeft(self._total, done, pace, now=self._now)
        self._task = self._progress.add_task(
            self._title, total=self._total, completed=done, note="", rate="", left=time_left(None)
        )
        self._progress.start()

    def evaluation(self, ended: int, episodes: int, steps: int) -> None:
        self._left.pause()
        if self._evaluation is None:
            self._evaluation = self._progress.add_task(
                "evaluation", total=episodes, note="", rate="", left=time_left(None)
            )
            self._evaluation_rate = Rate(0, now=self._now)
        rate = per_second(self._evaluation_rate(steps))
        self._progress.update(self._evaluation, completed=ended, note=f"{steps} steps played", rate=rate)

    def step(self, done: int, note: str) -> None:
        if self._evaluation is not None:
            self._progress.remove_task(self._evaluation)
            self._evaluation = None
        rate, left = self._left(done)
        self._progress.update(self._task, completed=done, note=note, rate=per_second(rate), left=time_left(left))

    def close(self) -> None:
        self._progress.stop()


def _columns(title: str, total: int, width: int) -> list[ProgressColumn]:
    """The columns that fit a terminal of that width: steps, rate, time left and results, the others if they fit."""
    room = width - len(f" {total}/{total} 12345/s eta 0:00:00 {LONGEST_NOTE}")
    shown = title if len(title) <= room else f"{title[: room - 1]}…" if room >= SHORTEST else ""
    room -= len(shown) + 1
    columns: list[ProgressColumn] = [_Title(shown)] if shown else []
    columns += [BarColumn(min(room - 1, LONGEST_BAR))] if room > SHORTEST else []
    columns += [MofNCompleteColumn(), TextColumn("{task.fields[rate]}")]
    columns += [TimeElapsedColumn()] if room > LONGEST_BAR + len(" 0:00:00") else []
    return [*columns, TextColumn("eta"), TextColumn("{task.fields[left]}"), TextColumn("{task.fields[note]}")]


class _Title(ProgressColumn):
    """The title of the run, or the word "evaluation" in its place."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def render(self, task: Task) -> Text:
        shown = task.description if task.description == "evaluation" else self._title
        return Text(shown[: len(self._title)].rjust(len(self._title)) if shown != self._title else shown, "bold")


class Lines:
    """One plain line every few seconds, for logs."""

    def __init__(self, title: str, total: int, every: float = 10.0) -> None:
        self._title, self._total, self._every = title, total, every

    def begin(self, done: int, pace: Pace | None = None) -> None:
        self._last = time.monotonic()
        self._left = TimeLeft(self._total, done, pace)

    def step(self, done: int, note: str) -> None:
        now, (rate, left) = time.monotonic(), self._left(done)
        if now - self._last >= self._every or done >= self._total:
            self._last = now
            steps = f"{done}/{self._total} steps"
            parts = [steps, per_second(rate), f"{time_left(left)} left", *([note] if note else [])]
            print(f"{self._title}: {', '.join(parts)}", flush=True)

    def evaluation(self, ended: int, episodes: int, steps: int) -> None:
        self._left.pause()
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            print(f"{self._title}: evaluation, {ended}/{episodes} episodes ended, {steps} steps played", flush=True)

    def close(self) -> None:
        pass


class Silent:
    """Shows nothing."""

    def begin(self, done: int, pace: Pace | None = None) -> None:
        pass

    def step(self, done: int, note: str) -> None:
        pass

    def evaluation(self, ended: int, episodes: int, steps: int) -> None:
        pass

    def close(self) -> None:
        pass


class SilentAfterError:
    """Another display until it cannot write (a full disk, a closed pipe), then nothing: the run continues."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def begin(self, done: int, pace: Pace | None = None) -> None:
        with self._silencing_errors():
            self._shown.begin(done, pace)

    def step(self, done: int, note: str) -> None:
        with self._silencing_errors():
            self._shown.step(done, note)

    def evaluation(self, ended: int, episodes: int, steps: int) -> None:
        with self._silencing_errors():
            self._shown.evaluation(ended, episodes, steps)

    def close(self) -> None:
        with self._silencing_errors():
            self._shown.close()

    @contextmanager
    def _silencing_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._shown = Silent()


@contextmanager
def showing_evaluation(title: str, episodes: int, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """What an evaluation calls with its progress: a bar on a terminal, elsewhere a line now and then."""
    if quiet or sys.stdout is None:
        yield None
        return
    live = sys.stdout.isatty()
    shown = SilentAfterError(Bar(title, episodes) if live else Lines(title, episodes))
    shown.begin(0)
    try:
        if live:
            yield lambda ended, steps: shown.step(ended, f"{steps} steps played")
        else:
            yield lambda ended, steps: shown.evaluation(ended, episodes, steps)
    finally:
        shown.close()


def display(title: str, total: int, *, quiet: bool) -> Display:
    """A bar on a terminal, plain lines elsewhere, nothing when `quiet` or without a stdout."""
    if quiet or sys.stdout is None:
        return Silent()
    return SilentAfterError(Bar(title, total) if sys.stdout.isatty() else Lines(title, total))
