"""Carries out a list of runs: skips finished ones, resumes started ones, retries failed ones."""

from __future__ import annotations

import shutil
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from playvirtual import files
from playvirtual.config.record import differences, from_dict
from playvirtual.errors import InputError
from playvirtual.runs import jsonl, stopped
from playvirtual.runs.folder import RunFolder
from playvirtual.study.engines.engine import Engine, Outcome
from playvirtual.study.probes.records import is_probed
from playvirtual.study.settings import other_results
from playvirtual.study.sweep import time as sweep_time
from playvirtual.study.sweep.grids import Job

LEAST_FREE = 2**14  # bytes of a disk: with less it counts as full
POLL_SECONDS = 0.5  # that one wait for the engine takes at most

State = Literal["new", "started", "finished"]


@dataclass
class Result:
    """How the runs of a sweep ended."""

    skipped: list[Job] = field(default_factory=list)  # finished before the sweep
    finished: list[Job] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)  # run folder → last error line
    waiting: list[Job] = field(default_factory=list)  # not ended because the sweep was stopped
    stopped_by: int = 0  # a signal's number


class Display(Protocol):
    """What a sweep shows while it runs."""

    def begin(self, total: int, skipped: int) -> None: ...

    def started(self, job: Job, attempt: int) -> None: ...

    def ended(self, job: Job, error: str | None, *, again: bool) -> None: ...

    def refresh(self, left: str) -> None:
        """Shows the present state; `left` is the estimate of the time that is left, "" while there is none."""
        ...

    def close(self) -> None: ...


class Changed(InputError):
    """The folder holds a run of another configuration."""


def state(job: Job) -> State:
    """Whether the job's run is new, started or finished; raises if its folder holds another configuration's run."""
    if files.kind(job.path / "config.json", "run") is None:
        return "new"
    try:
        record, evaluations = RunFolder(job.path).record(), jsonl.lines(job.path, "evaluations")
        finished = bool(evaluations) and evaluations[-1]["step"] >= job.config.steps
        finished = finished or stopped.read(job.path) is not None
        changed = other_results(record, job.config) if finished else differences(from_dict(record), job.config)
    except ValueError as error:
        raise InputError(f"run: {str(job.path)!r} cannot be read: {error}; remove it to run it anew") from None
    if changed:
        raise Changed(
            f"run: {str(job.path)!r} was made with another configuration ({'; '.join(changed)}); "
            "choose another --out, or remove it"
        )
    return "finished" if finished else "started"


def sort_out(jobs: Sequence[Job]) -> tuple[list[Job], list[Job], dict[Path, str]]:
    """(finished, to do, unreadable) jobs; raises if a folder holds a run of another configuration.

    A finished run whose probe is missing is to do, from that stage on.
    """
    finished: list[Job] = []
    to_do: list[Job] = []
    unreadable: dict[Path, str] = {}
    for job in jobs:
        try:
            if state(job) != "finished":
                to_do.append(job)
            elif _lacks_probe(job):
                to_do.append(replace(job, stage="probe"))
            else:
                finished.append(job)
        except Changed:
            raise
        except InputError as error:
            unreadable[job.path] = str(error)
    return finished, to_do, unreadable


def _lacks_probe(job: Job) -> bool:
    return bool(job.probe) and not is_probed(job.path, job.probe, job.config.steps)


def sweep(jobs: Sequence[Job], engine: Engine, display: Display, retries: int = 1) -> Result:
    """Carries out the runs that are not finished; a run that fails is tried `retries` times more, then given up.

    A run that ends for bad input is not tried again, since it would end with the same error. Where the table needs a
    probe, the engine takes it of each run that is trained, as work of its own. A SIGINT or SIGTERM ends the sweep: its
    runs write a checkpoint, from which the same sweep resumes them.
    """
    check_retries(retries)
    finished, to_do, unreadable = sort_out(jobs)
    display.begin(len(jobs), len(finished))
    carried = _Sweep(engine, display, retries, to_do, Result(skipped=finished))
    try:
        with _signals() as received:
            for job in [job for job in jobs if job.path in unreadable]:
                display.ended(job, unreadable[job.path], again=False)
                carried.give_up(job.path, unreadable[job.path])
            while carried.pending and not received:
                carried.start_runs()
                carried.show_running()
                for outcome in engine.wait(POLL_SECONDS):
                    carried.end(outcome)
                display.refresh(carried.time_left())
        if received and carried.pending:
            carried.show_running()
            carried.result.stopped_by, carried.result.waiting = received[0], carried.pending
    finally:
        display.close()
        engine.stop()
    return carried.result


def check_retries(retries: int) -> int:
    """The same number; raises an `InputError` if it is negative."""
    if retries < 0:
        raise InputError(f"retries: {retries} is not allowed; allowed: 0 or more")
    return retries


class _Sweep:
    """The runs of a sweep that wait, run and have ended."""

    def __init__(self, engine: Engine, display: Display, retries: int, to_do: Sequence[Job], result: Result) -> None:
        self.result = result
        self._engine, self._display, self._retries = engine, display, retries
        self._waiting, self._running = deque(to_do), dict[Path, Job]()
        self._time_left = sweep_time.TimeLeft(result.skipped)
        self._unfinished = {job.path for job in to_do if job.stage == "train"}  # and not given up
        self._attempts: dict[Path, int] = {}
        self._shown: dict[Path, float] = {}  # run folder → when the display was told that it runs
        self._from_scratch: dict[Path, bool] = {}  # run folder → whether this attempt started it, and resumed nothing

    @property
    def pending(self) -> list[Job]:
        """The runs that have not ended."""
        return [*self._running.values(), *self._waiting]

    def start_runs(self) -> None:
        """Starts as many runs as the engine has room for, each after the run whose encoder it loads."""
        while self._engine.room():
            job = next((job for job in self._waiting if job.after not in self._unfinished), None)
            if job is None:
                return
            self._waiting.remove(job)
            self._running[job.path] = job
            self._attempts[job.path] = self._attempts.get(job.path, 0) + 1
            self._from_scratch[job.path] = files.kind(job.path / "timing.jsonl", "run") is None
            self._engine.start(job)

    def time_left(self) -> str:
        """The estimate of the time that is left, in words."""
        return self._time_left.text(list(self._running.values()), list(self._waiting))

    def show_running(self) -> None:
        """Tells the display which runs the engine has started since the last call."""
        for job in self._engine.running():
            self._show(job)

    def _show(self, job: Job) -> None:
        if job.path not in self._shown:
            self._shown[job.path] = time.monotonic()
            self._display.started(job, self._attempts[job.path])

    def end(self, outcome: Outcome) -> None:
        """Records how a stage of a run ended; a failed one waits for its next attempt or is given up."""
        job, error, bad_input = outcome
        error = error and error + _full_disk(job.path.parent)
        self._show(job)
        seconds = time.monotonic() - self._shown.pop(job.path)
        del self._running[job.path]
        if error is None and job.stage == "train":
            if self._from_scratch[job.path]:
                sweep_time.note(job.path, seconds)
            self._time_left.ended(job)
            self._unfinished.discard(job.path)
            if _lacks_probe(job):
                del self._attempts[job.path]
                self._waiting.appendleft(replace(job, stage="probe"))
                return
        again = error is not None and not bad_input and self._attempts[job.path] <= self._retries
        self._display.ended(job, error, again=again)
        if error is None:
            self.result.finished.append(job)
        elif again:
            self._waiting.append(job)
        elif job.stage == "probe":
            self.result.failed[job.path] = error
        else:
            self.give_up(job.path, error)

    def give_up(self, path: Path, error: str) -> None:
        """Counts the run as failed, and with it the runs that wait for its encoder."""
        self.result.failed[path] = error
        self._unfinished.discard(path)
        for job in [job for job in self._waiting if job.after == path]:
            self._waiting.remove(job)
            self._display.ended(job, reason := f"needs {path}, which has failed", again=False)
            self.give_up(job.path, reason)


def _full_disk(folder: Path) -> str:
    """A note if the disk is full: then a run could not even write its error into its log."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" (No space left on the disk of {str(folder)!r})" if free < LEAST_FREE else ""


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The numbers of the SIGINTs and SIGTERMs that arrive inside the block, in a list that grows.

    The handler raises nothing, and the sweep reads the list between two waits: an exception raised inside an engine's
    C code, such as Ray's, would be replaced by an error of that code.
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
