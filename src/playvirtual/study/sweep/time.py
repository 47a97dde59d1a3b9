"""How long the runs of a sweep take, measured from the runs that are finished or started."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from playvirtual import files
from playvirtual.errors import InputError
from playvirtual.messages import duration
from playvirtual.runs import jsonl
from playvirtual.study.sweep.grids import Job

ESTIMATE_EVERY = 5.0  # seconds between two estimates of a running sweep
NAME = "sweep.json"  # in a run folder: the seconds of a run that one process made, including its start-up

Source = Literal["finished runs", "started runs", "other rows"]


class Rate(NamedTuple):
    """Seconds per step, and which runs they were measured from."""

    seconds: float
    source: Source


def note(run: Path, seconds: float) -> None:
    """Records how long a run took as a whole; timing.jsonl starts only when the agent is built."""
    with suppress(OSError):  # without it a plan falls back on timing.jsonl
        files.write(run / NAME, json.dumps({"seconds": round(seconds, 3)}) + "\n")


def rates(finished: Sequence[Job], to_do: Sequence[Job]) -> dict[tuple[str, str], Rate]:
    """(task, row) → its rate, from its finished runs, else its started runs, else the task's other rows."""
    whole, part = _means(finished, _of_finished), _means(to_do, _of_started)
    return _combined(whole, part, [*finished, *to_do])


def _combined(
    whole: Mapping[tuple[str, str], float], part: Mapping[tuple[str, str], float], jobs: Sequence[Job]
) -> dict[tuple[str, str], Rate]:
    """The rate of every row of these jobs that one of finished (`whole`) or started runs (`part`) tells."""
    found: dict[tuple[str, str], Rate] = {}
    for task, label in {(job.config.task, job.label) for job in jobs}:
        known = (task, label)
        others = [rate for source in (whole, part) for (of, _), rate in source.items() if of == task]
        if known in whole:
            found[known] = Rate(whole[known], "finished runs")
        elif known in part:
            found[known] = Rate(part[known], "started runs")
        elif others:
            found[known] = Rate(sum(others) / len(others), "other rows")
    return found


class TimeLeft:
    """Estimates how long the rest of a running sweep takes; finished runs are read once, running ones now and then."""

    def __init__(self, finished: Sequence[Job], now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._next, self._text = now, 0.0, ""
        self._whole: dict[tuple[str, str], list[float]] = {}
        for job in finished:
            self.ended(job)

    def ended(self, job: Job) -> None:
        """Takes a run into account that has finished."""
        if (rate := _of_finished(job)) is not None:
            self._whole.setdefault((job.config.task, job.label), []).append(rate)

    def text(self, running: Sequence[Job], waiting: Sequence[Job]) -> str:
        """As in "about 12 min left", "at least" where a task has not been measured; "" while nothing is known."""
        if self._now() >= self._next:
            self._next = self._now() + ESTIMATE_EVERY
            self._text = self._estimate(running, waiting)
        return self._text

    def _estimate(self, running: Sequence[Job], waiting: Sequence[Job]) -> str:
        pending = [job for job in (*running, *waiting) if job.stage == "train"]
        whole = {key: sum(found) / len(found) for key, found in self._whole.items()}
        known = _combined(whole, _means(running, _of_started), pending)
        lengths = [
            steps_left(job) * known[key].seconds for job in pending if (key := (job.config.task, job.label)) in known
        ]
        if not lengths:
            return ""
        seconds = max(sum(lengths) / max(1, len(running)), *lengths)
        return f"{'about' if len(lengths) == len(pending) else 'at least'} {duration(seconds)} left"


def steps_left(job: Job) -> int:
    """How many steps of the run are not in its JSONL logs yet."""
    return max(0, job.config.steps - int(jsonl.last(job.path, "timing").get("step", 0)))


def _means(jobs: Sequence[Job], measure: Callable[[Job], float | None]) -> dict[tuple[str, str], float]:
    """(task, row) → the mean over its runs that have been timed."""
    values: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        if (rate := measure(job)) is not None:
            values.setdefault((job.config.task, job.label), []).append(rate)
    return {key: sum(found) / len(found) for key, found in values.items()}


def _of_finished(job: Job) -> float | None:
    """Seconds per step of a finished run, from its time as a whole."""
    spent = (_noted(job.path), jsonl.last(job.path, "timing").get("seconds"))
    known = [float(seconds) for seconds in spent if files.is_number(seconds) and seconds > 0]
    taken = jsonl.last(job.path, "timing").get("step", job.config.steps)  # fewer where it was stopped early
    return known[0] / max(1, min(taken, job.config.steps)) if known else None


def _noted(run: Path) -> Any:
    """What `note` recorded; None if there is nothing."""
    try:
        return files.read_record(run / NAME, "run").get("seconds")
    except InputError:
        return None


def _of_started(job: Job) -> float | None:
    """Seconds per step since the first logged update: random play before it is faster, compiling is slower."""
    first = job.config.first_update * job.config.frames_per_step
    try:
        lines = [line for line in jsonl.read(job.path, "timing", ["seconds"])[0] if line["step"] >= first]
        begin, end = lines[0], lines[-1]
        return (float(end["seconds"]) - float(begin["seconds"])) / int(end["step"] - begin["step"])
    except (InputError, IndexError, ZeroDivisionError):
        return None
