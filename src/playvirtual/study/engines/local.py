"""Runs on this machine: a pool of processes, one per run, spread over its cores and GPUs."""

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

from playvirtual.device import GPU_EXPECTED, num_cores
from playvirtual.errors import InputError, writing
from playvirtual.runs import jsonl
from playvirtual.runs.atomic_io import make_folder
from playvirtual.study.engines import mps as mps_daemon
from playvirtual.study.engines.engine import Outcome
from playvirtual.study.sweep.grids import Job

STOP_SECONDS = 60.0  # that a run has to write its checkpoint when it is told to stop
ASK_SECONDS = 20.0  # that nvidia-smi has to answer
PR_SET_PDEATHSIG = 1
BAD_INPUT = 2  # the exit code of `playvirtual` for bad input
# Where runs share a GPU: more than these many gain little, and what each of them needs.
MOST_PER_GPU, CORES_PER_RUN, HOST_BYTES_PER_RUN, GPU_MIB_PER_RUN = 6, 2, 4e9, 4_000


@dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    gpu: int | None  # among the engine's

    @property
    def trains(self) -> bool:
        """Whether the run has steps left to learn from."""
        return bool(jsonl.last(self.job.path, "metrics").get("step", 0) < self.job.config.steps)


class LocalEngine:
    """At most `workers` runs that train at a time, each a process of its own, assigned to the GPUs where there are any.

    A run that has learned and plays its last evaluation leaves a GPU nearly idle, and one long game can hold it for
    minutes: it gives up its place, so that the next run trains meanwhile. On the CPU it keeps it.

    `device` says which GPUs: none with "cpu", one with "cuda:N", else all; a run sees only its own. Runs that share
    a GPU do so under an MPS daemon that is started with the first of them and ended by `stop`; see mps.py. Without
    `per_gpu` as many share one as `runs_per_gpu` says.
    """

    def __init__(
        self, workers: int | None = None, per_gpu: int | None = None, *, device: str = "auto", mps: str = "auto"
    ) -> None:
        for name, value in (("workers", workers), ("per_gpu", per_gpu)):
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} is not allowed; allowed: 1 or more")
        mps_daemon.check(mps)
        self.device, self.gpus = device, _visible_gpus(device)
        if not self.gpus:
            self.workers = workers or num_cores()
        else:
            self.workers = workers or len(self.gpus) * (per_gpu or runs_per_gpu(len(self.gpus), mps))
        # A run that learns on a GPU keeps about one core busy, and few of them evaluate at a time, each with as many
        # processes as this allows: so it may be half of the machine.
        self.threads = max(1, num_cores() // min(self.workers, 2 if self.gpus else self.workers))
        # PyTorch's compiler would start a process per core in every run; runs that start together compile together.
        self.compile_threads = max(2, num_cores() // self.workers)
        self._children: list[_Child] = []
        self._mps = mps if self.workers > len(self.gpus) > 0 else "off"  # the first run starts the daemon
        self._daemon: mps_daemon.Daemon | None = None

    def room(self) -> bool:
        places = self._training() if self.gpus else self._children
        return len(places) < self.workers and len(self._children) < 2 * self.workers

    def _training(self) -> list[_Child]:
        return [child for child in self._children if child.trains]

    def _idlest_gpu(self) -> int | None:
        """The GPU with the fewest runs that train; None where there is no GPU."""
        busy = [child.gpu for child in self._training()]
        return min(range(len(self.gpus)), key=busy.count, default=None)

    def start(self, job: Job) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self.compile_threads))
        if self._mps != "off":
            self._daemon, self._mps = mps_daemon.start(self._mps, self.gpus), "off"
        gpu = self._idlest_gpu()
        if gpu is not None:
            environment[GPU_EXPECTED] = "1"
            environment["CUDA_VISIBLE_DEVICES"] = self._daemon.visible(gpu) if self._daemon else self.gpus[gpu]
        if self._daemon:
            environment |= self._daemon.environment
        with writing("out", job.path.parent):
            make_folder(job.path.parent)
            log = log_file(job).open("wb")
        resuming = ("--quiet", "--resume") if job.stage == "train" else ()
        process = subprocess.Popen(
            [sys.executable, "-m", "playvirtual", *self._as_seen_by_child(job).command(), *resuming],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which then stops its runs
            preexec_fn=_terminate_with_parent if sys.platform == "linux" else None,
        )
        self._children.append(_Child(job, process, log, gpu))

    def _as_seen_by_child(self, job: Job) -> Job:
        """The run with the device as its process sees it: a GPU that is visible alone has no number there."""
        if self.device.startswith("cuda:") and job.options.get("device") == self.device:
            return replace(job, options={**job.options, "device": "cuda"})
        return job

    def running(self) -> list[Job]:
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
        deadline = time.monotonic() + STOP_SECONDS
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


def runs_per_gpu(gpus: int, mps: str) -> int:
    """How many runs share each of so many GPUs by default: under MPS as many as the machine carries, else one."""
    if not mps_daemon.can_be_used(mps):
        return 1
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    carried = [num_cores() / CORES_PER_RUN / gpus, host / HOST_BYTES_PER_RUN / gpus]
    carried += [mebibytes / GPU_MIB_PER_RUN for mebibytes in _gpu_memory()]
    return max(1, min(MOST_PER_GPU, *map(int, carried)))


def _gpu_memory() -> list[float]:
    """The MiB of every GPU of this machine by NVIDIA's own program; empty where it does not tell."""
    words = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS, check=True).stdout
        return [float(line) for line in told.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def log_file(job: Job) -> Path:
    """The file beside a run's folder that holds its output; it is removed when the run succeeds."""
    return job.path.with_name(job.path.name + ".log")


def _outcome(child: _Child) -> Outcome:
    child.log.close()
    log, code = log_file(child.job), child.process.returncode
    if code == 0:
        log.unlink(missing_ok=True)
        return Outcome(child.job, None)
    if code < 0:
        return Outcome(child.job, f"killed by {_signal_name(-code)}")
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:  # removed, as when somebody removes the folder of a sweep that runs
        lines = []
    error = lines[-1].strip() if lines else f"exit code {code} without any output"
    return Outcome(child.job, error, bad_input=code == BAD_INPUT)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _visible_gpus(device: str) -> list[str]:
    """The values that CUDA_VISIBLE_DEVICES takes for the GPUs that `device` means, one per GPU."""
    if device == "cpu":
        return []
    import torch

    count = torch.cuda.device_count()
    listed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    gpus = listed[:count] if listed else [str(n) for n in range(count)]
    number = device.partition(":")[2]
    return gpus[int(number) :][:1] if number else gpus


def _terminate_with_parent() -> None:
    """Called in the child: when a sweep is killed, its runs are terminated and release their folders."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
