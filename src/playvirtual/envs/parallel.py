"""Lanes that are stepped at the same time, in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.config import EnvironmentConfig
from playvirtual.envs import gl
from playvirtual.envs.action_spaces import from_description
from playvirtual.envs.protocol import Frames, Step
from playvirtual.envs.wire import Array, receive, send
from playvirtual.errors import InputError

PATIENCE = 10.0  # seconds a worker has to leave by itself


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection
    lanes: range  # of the whole row


class ParallelLanes:
    """The same `Environment` as in one process, to the bit, shared out over `workers` of them.

    Processes and not threads: a DMControl step is, beside the drawing, mostly Python, which threads would take in
    turns as they would the making of Atari emulators, and an EGL context is at home in one thread. They are started
    afresh with this interpreter, so that nothing of the caller (CUDA, its main module) is needed in them or can be
    harmed, and they end when the pipe to them is closed, however this process ends. After an error in one of them only
    `close` is left.
    """

    def __init__(self, task: str, lanes: int, *, training: bool, config: EnvironmentConfig, workers: int) -> None:
        # Here, where a machine that cannot draw is one line.
        backend = gl.choose() if task.startswith("dmc/") else None
        self.lanes = lanes
        self._workers: list[_Worker] = []
        edges = [lanes * n // workers for n in range(workers + 1)]
        try:
            for low, high in pairwise(edges):
                self._workers.append(_start(range(low, high)))
            for worker in self._workers:
                what = {"task": task, "lanes": len(worker.lanes), "training": training}
                self._ask(worker, {**what, "config": asdict(config), "backend": backend})
            answers = [self._answer(worker)[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.frame_shape: tuple[int, int, int] = tuple(answers[0]["frame_shape"])
        self.action_space = from_description(answers[0]["actions"])

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        frames = np.empty((len(lanes), *self.frame_shape), np.uint8)
        asked = []
        for worker in self._workers:
            places = [place for place, lane in enumerate(lanes) if lane in worker.lanes]
            if places:
                own = [int(lanes[place]) - worker.lanes.start for place in places]
                self._ask(worker, {"call": "reset", "lanes": own, "seeds": [int(seeds[place]) for place in places]})
                asked.append((worker, places))
        for worker, places in asked:
            frames[places] = self._answer(worker)[1][0]
        return frames

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        for worker in self._workers:
            self._ask(worker, {"call": "step"}, [actions[worker.lanes.start : worker.lanes.stop]])
        parts = [self._answer(worker)[1] for worker in self._workers]
        return Step(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def picture(self, lane: int) -> Frames:
        worker = next(worker for worker in self._workers if lane in worker.lanes)
        self._ask(worker, {"call": "picture", "lane": lane - worker.lanes.start})
        return self._answer(worker)[1][0].copy()

    def close(self) -> None:
        """Ends the processes and waits for them."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            try:
                worker.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _ask(self, worker: _Worker, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        try:
            send(worker.connection, header, arrays)
        except OSError:
            raise _lost(worker) from None

    def _answer(self, worker: _Worker) -> tuple[dict[str, Any], list[Array]]:
        try:
            header, arrays = receive(worker.connection)
        except (EOFError, OSError):
            raise _lost(worker) from None
        if "error" in header:
            raise (InputError if header["error"] == "input" else RuntimeError)(header["text"])
        return header, arrays


def _start(lanes: range) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # -P and the path: what is imported there is what would be imported here.
            [sys.executable, "-P", "-m", "playvirtual.envs.lane_worker", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the caller, who closes these
        )
    return _Worker(process, Connection(ours.detach()), lanes)


def _lost(worker: _Worker) -> RuntimeError:
    try:
        code: int | str = worker.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        code = "unknown"
    first, last = worker.lanes.start, worker.lanes.stop - 1
    return RuntimeError(f"the process that played lanes {first} to {last} has ended (exit code {code})")
