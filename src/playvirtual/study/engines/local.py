"""A pool of processes on this machine, one per run, shared out over its cores and graphics cards."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from playvirtual.cores import cores
from playvirtual.errors import InputError, writing
from playvirtual.study.engines import Outcome
from playvirtual.study.engines import mps as mps_daemon
from playvirtual.study.grids import Job

PATIENCE = 60.0  # seconds a run has to write its checkpoint when it is told to stop
PR_SET_PDEATHSIG = 1
BAD_INPUT = 2  # the exit code of `playvirtual` for what is the user's to mend


@dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    slot: int


class LocalEngine:
    """At most `workers` processes at a time; with graphics cards, dealt out to them in turn.

    `device` says which cards: none with "cpu", one with "cuda:N", else all; a run sees no other than its own.
    Runs that share a card do so under an MPS daemon that lives from the first of them to `stop`; see `mps`.
    """

    def __init__(
        self, workers: int | None = None, per_gpu: int = 1, *, device: str = "auto", mps: str = "auto"
    ) -> None:
        for name, value in (("workers", workers), ("per_gpu", per_gpu)):
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} is not allowed; allowed: 1 or more")
        mps_daemon.check(mps)
        self.device, self.gpus = device, _cards(device)
        self.workers = workers or (len(self.gpus) * per_gpu if self.gpus else cores())
        self.threads = max(1, cores() // self.workers)
        self._children: list[_Child] = []
        self._mps = mps if self.workers > len(self.gpus) > 0 else "off"  # until it is settled by the first run
        self._daemon: mps_daemon.Daemon | None = None

    def room(self) -> bool:
        return len(self._children) < self.workers

    def start(self, job: Job) -> None:
        slot = next(n for n in range(self.workers) if n not in {child.slot for child in self._children})
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        if self._mps != "off":
            self._daemon, self._mps = mps_daemon.start(self._mps, self.gpus), "off"
        if self.gpus:
            card = slot % len(self.gpus)
            environment["CUDA_VISIBLE_DEVICES"] = self._daemon.visible(card) if self._daemon else self.gpus[card]
        if self._daemon:
            environment |= self._daemon.environment
        with writing("out", job.path.parent):
            job.path.parent.mkdir(parents=True, exist_ok=True)
            log = log_file(job).open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "playvirtual", *self._told(job).command(), "--quiet", "--resume"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which then tells its runs
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        self._children.append(_Child(job, process, log, slot))

    def _told(self, job: Job) -> Job:
        """The run as its process must be told it: a single card has no number there."""
        if self.device.startswith("cuda:") and job.options.get("device") == self.device:
            return replace(job, options={**job.options, "device": "cuda"})
        return job

    def begun(self) -> list[Job]:
        return [child.job for child in self._children]

    def wait(self, seconds: float) -> list[Outcome]:
        deadline = time.monotonic() + seconds
        while not (ended := [c for c in self._children if c.process.poll() is not None]):
            if time.monotonic() >= deadline:
                return []
            time.sleep(0.05)
        self._children = [c for c in self._children if c not in ended]
        return [_outcome(child) for child in ended]

    def stop(self) -> None:
        try:
            self._stop_children()
        finally:
            daemon, self._daemon = self._daemon, None
            if daemon is not None:
                daemon.stop()

    def _stop_children(self) -> None:
        for child in self._children:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        try:
            for child in self._children:
                child.process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for child in self._children:
                child.process.kill()
        for child in self._children:
            child.process.wait()
            child.log.close()
        self._children = []


def log_file(job: Job) -> Path:
    """Where a run's own output goes while it runs, and stays if it fails: beside its folder."""
    return job.path.with_name(job.path.name + ".log")


def _outcome(child: _Child) -> Outcome:
    child.log.close()
    log, code = log_file(child.job), child.process.returncode
    if code == 0:
        log.unlink(missing_ok=True)
        return Outcome(child.job, None)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code < 0:
        return Outcome(child.job, f"killed by {signal.Signals(-code).name}")
    error = lines[-1].strip() if lines else f"exit code {code} without a word"
    return Outcome(child.job, error, hopeless=code == BAD_INPUT)


def _cards(device: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to, card by card of those that `device` means."""
    if device == "cpu":
        return []
    import torch

    count = torch.cuda.device_count()
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    cards = listed[:count] if listed else [str(n) for n in range(count)]
    number = device.partition(":")[2]
    return cards[int(number) :][:1] if number else cards


def _end_with_parent() -> None:
    """In the child: a sweep that is killed outright must not leave runs behind that hold their folders."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
