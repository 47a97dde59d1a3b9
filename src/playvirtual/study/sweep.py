"""Carries out a list of runs: skips the finished, resumes the begun, retries the failed, never stops for one."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from playvirtual.config import differences, from_dict
from playvirtual.errors import InputError
from playvirtual.study import sweep_time
from playvirtual.study.engines import Engine
from playvirtual.study.grids import Job
from playvirtual.study.settings import other_results
from playvirtual.training import journals
from playvirtual.training.run_folder import RunFolder

POLL = 0.5  # seconds between two looks at what runs

State = Literal["new", "begun", "finished"]


@dataclass
class Result:
    """How the runs of a sweep ended."""

    skipped: list[Job] = field(default_factory=list)  # finished before
    finished: list[Job] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)  # run folder → last error line
    waiting: list[Job] = field(default_factory=list)  # not ended because the sweep was stopped
    stopped_by: int = 0  # a signal's number


class Display(Protocol):
    """What a person sees of a sweep."""

    def begin(self, total: int, skipped: int) -> None: ...

    def started(self, job: Job, attempt: int) -> None: ...

    def ended(self, job: Job, error: str | None, *, again: bool) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class Changed(InputError):
    """The folder holds a run of another configuration."""


def state(job: Job) -> State:
    """How far the run in the job's folder is; raises if that folder holds a run of another configuration."""
    if not (job.path / "config.json").exists():
        return "new"
    try:
        record, evaluations = RunFolder(job.path).record(), journals.lines(job.path, "evaluations")
        finished = bool(evaluations) and evaluations[-1]["step"] >= job.config.steps
        changed = other_results(record, job.config) if finished else differences(from_dict(record), job.config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"run: {str(job.path)!r} cannot be read: {error}; remove it to run it anew") from None
    if changed:
        raise Changed(
            f"run: {str(job.path)!r} was made with another configuration ({'; '.join(changed)}); "
            "choose another --out, or remove it"
        )
    return "finished" if finished else "begun"


def sort_out(jobs: Sequence[Job]) -> tuple[list[Job], list[Job], dict[Path, str]]:
    """(finished, to do, unreadable); a changed configuration is refused before anything has started."""
    finished: list[Job] = []
    to_do: list[Job] = []
    unreadable: dict[Path, str] = {}
    for job in jobs:
        try:
            (finished if state(job) == "finished" else to_do).append(job)
        except Changed:
            raise
        except InputError as error:
            unreadable[job.path] = str(error)
    return finished, to_do, unreadable


def sweep(jobs: Sequence[Job], engine: Engine, display: Display, retries: int = 1) -> Result:
    """Runs what is not finished; a run that fails is tried `retries` times more and then left aside.

    One that ends for bad input is not tried again, since it would end in the same way.
    """
    if retries < 0:
        raise InputError(f"retries: {retries} is not allowed; allowed: 0 or more")
    finished, to_do, unreadable = sort_out(jobs)
    result = Result(skipped=finished, failed=unreadable)
    waiting, running = deque(to_do), dict[Path, Job]()
    undone = {job.path for job in to_do}  # and not given up
    attempts: dict[Path, int] = {}
    shown: dict[Path, float] = {}  # run folder → since when the display knows that it runs
    anew: dict[Path, bool] = {}  # run folder → whether this attempt makes the run as a whole
    display.begin(len(jobs), len(finished))

    def give_up(path: Path, error: str) -> None:
        """The run will not end, nor will those that wait for it."""
        result.failed[path] = error
        undone.discard(path)
        for job in [job for job in waiting if job.after == path]:
            waiting.remove(job)
            display.ended(job, reason := f"needs {path}, which has failed", again=False)
            give_up(job.path, reason)

    def show_begun(begun: Sequence[Job]) -> None:
        for job in begun:
            if job.path not in shown:
                shown[job.path] = time.monotonic()
                display.started(job, attempts[job.path])

    try:
        with _signals() as received:
            for lost in [job for job in jobs if job.path in unreadable]:
                display.ended(lost, error := unreadable[lost.path], again=False)
                give_up(lost.path, error)
            while (waiting or running) and not received:
                while engine.room() and (job := _next(waiting, undone)) is not None:
                    running[job.path] = job
                    attempts[job.path] = attempts.get(job.path, 0) + 1
                    anew[job.path] = not (job.path / "timing.jsonl").exists()
                    engine.start(job)
                show_begun(engine.begun())
                for job, failure, hopeless in engine.wait(POLL):
                    show_begun([job])
                    seconds = time.monotonic() - shown.pop(job.path)
                    del running[job.path]
                    again = failure is not None and not hopeless and attempts[job.path] <= retries
                    display.ended(job, failure, again=again)
                    if failure is None and anew[job.path]:
                        sweep_time.note(job.path, seconds)
                    if failure is None:
                        result.finished.append(job)
                        undone.discard(job.path)
                    elif again:
                        waiting.append(job)
                    else:
                        give_up(job.path, failure)
                display.refresh()
        if received and (waiting or running):
            show_begun(engine.begun())
            result.stopped_by, result.waiting = received[0], [*running.values(), *waiting]
    finally:
        display.close()
        engine.stop()
    return result


def _next(waiting: deque[Job], undone: set[Path]) -> Job | None:
    """Takes out the first run that waits for no other."""
    job = next((job for job in waiting if job.after not in undone), None)
    if job is not None:
        waiting.remove(job)
    return job


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The SIGINTs and SIGTERMs that come inside the block, in a list that grows.

    They are only noted, for the sweep to see between two polls: an exception in the middle of an engine's C code,
    such as Ray's, would be lost in an error of its own.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
