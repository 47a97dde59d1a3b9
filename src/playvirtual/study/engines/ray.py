"""Runs on a Ray cluster, placed by the CPUs and the share of a GPU that each asks for.

The run folders must lie on storage that all nodes share. A run whose worker or node is lost is started again by
Ray somewhere else and resumes from its last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from playvirtual.errors import InputError, InUse
from playvirtual.runs import atomic_io
from playvirtual.study.engines.engine import Outcome
from playvirtual.study.engines.ray_cluster import connect
from playvirtual.study.sweep.grids import Job

STOP_SECONDS = 60.0  # that a run has to write its checkpoint when it is told to stop
LOCK_SECONDS = 120.0  # that the worker of a lost node may hold its run folder
MAX_RESTARTS = 20  # of one run by Ray, after its worker or node was lost
NODES_SECONDS = 10.0  # between two looks at which nodes are alive
LOST_SECONDS = 30.0  # that Ray has to start the runs of a dead node elsewhere, before the engine does


class RayEngine:
    """Submits every run to the cluster at once; Ray queues what does not fit."""

    def __init__(
        self,
        address: str | None = None,
        cpus_per_run: float = 1.0,
        gpus_per_run: float | None = None,
        *,
        device: str = "auto",
    ) -> None:
        for name, value in (("cpus_per_run", cpus_per_run), ("gpus_per_run", gpus_per_run)):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: {value} is not allowed; allowed: 0 or more")
        self._ray = ray = connect(address)
        gpus = _largest_node(ray, "GPU")
        wanted = (1.0 if gpus else 0.0) if gpus_per_run is None else gpus_per_run
        if wanted > gpus:
            raise InputError(f"gpus_per_run: {wanted:g} is not allowed; allowed: 0 to {gpus:g}, the largest node's")
        if device.startswith("cuda") and not wanted:
            raise InputError(
                f"device: {device!r} is not allowed with gpus_per_run 0; allowed: auto, cpu, or a share of the "
                f"{gpus:g} GPUs of the largest node"
            )
        self._without_gpus = not wanted
        cpus = _largest_node(ray, "CPU")
        if cpus_per_run > cpus:
            raise InputError(
                f"cpus_per_run: {cpus_per_run:g} is not allowed; allowed: 0 to {cpus:g}, the largest node's"
            )
        # max_calls=1: every run gets a process of its own, as it has on one machine.
        remote = ray.remote(
            num_cpus=cpus_per_run, num_gpus=wanted, max_retries=MAX_RESTARTS, max_calls=1, scheduling_strategy="SPREAD"
        )
        self._functions = self._train, self._probe = remote(_train), remote(_probe)
        self._tasks: dict[Any, Job] = {}
        self._queued: dict[Path, int] = {}  # run folder → when its lock was last written before the run was queued
        self._looked_at_nodes = time.monotonic()
        self._dead = {node["NodeID"]: math.inf for node in ray.nodes() if not node["Alive"]}  # → since when
        self._restarts = 0

    def room(self) -> bool:
        return True

    def start(self, job: Job) -> None:
        run = str(Path(job.path).resolve())
        # A run that was assigned no GPU may see those of its node: Ray hides them or not, by its version.
        device = "cpu" if self._without_gpus else job.device
        if job.stage == "probe":
            self._tasks[self._probe.remote(run, job.probe, device)] = job
            return
        self._queued[job.path] = _locked_at(job)
        self._tasks[self._train.remote({**job.arguments(), "run_dir": run, "device": device})] = job

    def running(self) -> list[Job]:
        """The runs whose task has written the lock of its run folder, which all nodes share, and all probes."""
        self._queued = {
            job.path: self._queued[job.path]
            for job in self._tasks.values()
            if job.path in self._queued and _locked_at(job) == self._queued[job.path]
        }
        return [job for job in self._tasks.values() if job.path not in self._queued]

    def wait(self, seconds: float) -> list[Outcome]:
        if not self._tasks:
            return []
        if time.monotonic() - self._looked_at_nodes > NODES_SECONDS:
            self._restart_runs_of_lost_nodes()
            self._looked_at_nodes = time.monotonic()
        ended, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        return [self._outcome(reference) for reference in ended]

    def _restart_runs_of_lost_nodes(self) -> None:
        """Starts all runs again that do not run on a host that is alive, once for each node that died.

        A host that loses its power or its network closes no connection. Ray declares its node dead after a minute, but
        waits for its answers, to runs and to requests for a place, until connections time out, some seven minutes.
        """
        nodes, now = self._ray.nodes(), time.monotonic()
        for node in nodes:
            if not node["Alive"]:
                self._dead.setdefault(node["NodeID"], now)
        due = [node for node, since in self._dead.items() if now - since > LOST_SECONDS]
        if not due:
            return
        self._dead.update(dict.fromkeys(due, math.inf))
        alive = {node["NodeManagerHostname"] for node in nodes if node["Alive"]}
        kept = {job.path for job in self.running() if job.stage == "train" and _host(job) in alive}
        # A task that asks for other resources, if only for so many bytes, waits for none of the earlier requests.
        self._restarts += 1
        self._train, self._probe = (function.options(memory=self._restarts) for function in self._functions)
        for reference, job in list(self._tasks.items()):
            if job.path not in kept:
                del self._tasks[reference]
                self._cancel([reference], force=True)
                self.start(job)

    def stop(self) -> None:
        try:
            self._stop_runs()
        except (KeyboardInterrupt, SystemError):  # a second signal, which Ray's C code turns into a SystemError
            self._cancel(list(self._tasks), force=True)
        self._tasks = {}
        self._ray.shutdown()

    def _stop_runs(self) -> None:
        """Tells every run to write a checkpoint and end, waits, and kills those that have not ended by then."""
        left = list(self._tasks)
        self._cancel(left, force=False)  # raises SIGINT in the worker's main thread
        deadline = time.monotonic() + STOP_SECONDS
        while left and time.monotonic() < deadline:
            _, left = self._ray.wait(left, num_returns=len(left), timeout=0)
            time.sleep(0.1)
        self._cancel(left, force=True)

    def _cancel(self, references: Sequence[Any], *, force: bool) -> None:
        for reference in references:
            self._ray.cancel(reference, force=force)

    def _outcome(self, reference: Any) -> Outcome:
        job = self._tasks.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            # Ray raises an exception that is an instance of its own error and of the run's.
            bad_input = isinstance(error, InputError) and not isinstance(error, InUse)
            return Outcome(job, lines[-1].strip() if lines else type(error).__name__, bad_input)
        return Outcome(job, None)


def _train(arguments: Mapping[str, Any]) -> None:
    """Trains one run in a worker of the cluster, in this process, so that it ends when the worker does."""
    from playvirtual.api import train

    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            train(**arguments, quiet=True, resume=True)
            return
        except InUse:
            # The worker of a lost node survives for some seconds and holds its run folder until it ends.
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _probe(run: str, what: str, device: str) -> None:
    """Takes a probe of a finished run in a worker of the cluster."""
    from playvirtual.runs.folder import RunFolder
    from playvirtual.study.probes.probe import probe

    RunFolder.open(run).trusted_config(trust_env=True)  # this sweep has made the run
    probe(run, what, device=device)


def _host(job: Job) -> str:
    """The name of the host whose process last locked the run folder; "" for none."""
    try:
        return (job.path / atomic_io.LOCK).read_text(errors="replace").strip().rpartition(" on ")[2]
    except OSError:
        return ""


def _locked_at(job: Job) -> int:
    """When a process last locked the run folder, on the clock of the storage; 0 for never."""
    try:
        return (job.path / atomic_io.LOCK).stat().st_mtime_ns
    except OSError:
        return 0


def _largest_node(ray: Any, resource: str) -> float:
    """How much of a resource the node that has most of it has, among the nodes that are alive."""
    return max((float(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"]), default=0.0)
