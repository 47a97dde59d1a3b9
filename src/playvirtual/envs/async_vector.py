"""A vector env whose environments are stepped at the same time in worker processes: messages, vector env, worker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.envs.env import (
    EnvironmentConfig,
    Frames,
    VectorEnv,
    VectorStep,
    action_names,
    describe_space,
    space_from_description,
)
from playvirtual.envs.making import make
from playvirtual.envs.registry import entry_point, env_family, register_env
from playvirtual.errors import EnvError, InputError

Array = npt.NDArray[Any]
ALIGNMENT = 16  # bytes; every array of a message begins at a multiple of it
EXIT_SECONDS = 10.0  # that a worker has to end by itself
NICENESS = 10  # of workers: where runs share a machine, one that learns goes before another's evaluation


def send(connection: Connection, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Sends a header that JSON can hold and some arrays as one message: every further piece would be a system call."""
    formats = [(array.dtype.str, array.shape) for array in arrays]
    head = json.dumps([header, formats]).encode() + b"\n"
    parts = [_padded(head), *(_padded(np.ascontiguousarray(array).tobytes()) for array in arrays)]
    connection.send_bytes(b"".join(parts))


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Waits for one message; raises `EOFError` or `OSError` if the other side has closed. Arrays are read-only."""
    message = connection.recv_bytes()
    end = message.index(b"\n") + 1  # JSON without indentation holds no line break
    header, formats = json.loads(message[:end])
    arrays, at = [], end + _padding(end)
    for dtype, shape in formats:
        count = int(np.prod(shape))
        array = np.frombuffer(message, np.dtype(dtype), count, at).reshape(shape) if count else np.zeros(shape, dtype)
        arrays.append(array)
        at += array.nbytes + _padding(array.nbytes)
    return header, arrays


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def _padded(part: bytes) -> bytes:
    return part + bytes(_padding(len(part)))


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection
    indices: range  # of its environments among all


class AsyncVectorEnv:
    """A `VectorEnv` divided among `num_workers` worker processes, bit-identical to the same one in this process.

    Workers are processes, not threads, because a DMControl step is mostly Python and an Atari emulator is made with
    Python's lock held, and because an EGL context belongs to one thread. They are started afresh with this interpreter,
    so they need nothing of the caller (CUDA, its main module) and cannot harm it, and they end when the pipe to them is
    closed, however this process ends. After an error in a worker only `close` may be called.
    """

    def __init__(
        self, task: str, num_envs: int, *, training: bool, config: EnvironmentConfig, num_workers: int
    ) -> None:
        spec = env_family(task)
        setup = {
            "task": task,
            "entry_point": entry_point(task),
            "training": training,
            "config": asdict(config),
            "set_up": spec.before_workers() if spec.before_workers is not None else None,
        }
        self.num_envs = num_envs
        self._workers: list[_Worker] = []
        edges = [num_envs * n // num_workers for n in range(num_workers + 1)]
        try:
            for low, high in pairwise(edges):
                self._workers.append(_start_worker(range(low, high)))
            for worker in self._workers:
                self._send(worker, {**setup, "num_envs": len(worker.indices)})
            answers = [self._receive(worker)[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.frame_shape: tuple[int, int, int] = tuple(answers[0]["frame_shape"])
        self.action_space = space_from_description(answers[0]["action_space"])
        self.action_names: tuple[str, ...] = tuple(answers[0]["action_names"])

    @property
    def alive(self) -> bool:
        """Whether all worker processes are running."""
        return all(worker.process.poll() is None for worker in self._workers)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> Frames:
        shares = self._divide(indices)
        for worker, places, local in shares:
            self._send(worker, {"call": "reset", "indices": local, "seeds": [int(seeds[place]) for place in places]})
        frames = np.empty((len(indices), *self.frame_shape), np.uint8)
        for worker, places, _ in shares:
            frames[places] = self._receive(worker)[1][0]
        return frames

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        shares = self._divide(range(self.num_envs) if indices is None else indices)
        for worker, places, local in shares:
            self._send(worker, {"call": "step", "indices": local}, [actions[places]])
        count = len(actions)
        result = VectorStep(
            np.empty((count, *self.frame_shape), np.uint8),
            np.empty(count, np.float32),
            np.empty(count, np.bool_),
            np.empty(count, np.bool_),
        )
        for worker, places, _ in shares:
            frames, rewards, terminated, done = self._receive(worker)[1]
            result.frames[places], result.rewards[places] = frames, rewards
            result.terminated[places], result.done[places] = terminated, done
        return result

    def _divide(self, indices: Sequence[int]) -> list[tuple[_Worker, list[int], list[int]]]:
        """The workers that have some of the environments: their places in `indices`, and their numbers there."""
        shares = []
        for worker in self._workers:
            places = [place for place, index in enumerate(indices) if index in worker.indices]
            if places:
                shares.append((worker, places, [int(indices[place]) - worker.indices.start for place in places]))
        return shares

    def render(self, index: int) -> Frames:
        worker = next(worker for worker in self._workers if index in worker.indices)
        self._send(worker, {"call": "render", "index": index - worker.indices.start})
        return self._receive(worker)[1][0].copy()

    def close(self) -> None:
        """Ends the workers and waits for them."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            try:
                worker.process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _send(self, worker: _Worker, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        try:
            send(worker.connection, header, arrays)
        except OSError:
            raise _lost(worker) from None

    def _receive(self, worker: _Worker) -> tuple[dict[str, Any], list[Array]]:
        try:
            header, arrays = receive(worker.connection)
        except (EOFError, OSError):
            raise _lost(worker) from None
        if "error" in header:
            raise {"input": InputError, "env": EnvError}.get(header["error"], RuntimeError)(header["text"])
        return header, arrays


def _start_worker(indices: range) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # -P and PYTHONPATH: the worker imports the same files as this process.
            [sys.executable, "-P", "-m", "playvirtual.envs.async_vector", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches the caller alone, which closes its workers
        )
    return _Worker(process, Connection(ours.detach()), indices)


def _lost(worker: _Worker) -> EnvError:
    try:
        code: int | str = worker.process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        code = "unknown"
    first, last = worker.indices.start, worker.indices.stop - 1
    return EnvError(f"environment: the worker process of environments {first} to {last} has ended (exit code {code})")


def serve(descriptor: int) -> None:
    """Runs an env worker: makes its environments and answers calls until the other end of the pipe is closed."""
    connection = Connection(descriptor)
    os.nice(NICENESS)
    env: VectorEnv | None = None
    try:
        while True:
            header, arrays = receive(connection)
            try:
                if env is None:
                    env = _make(header)
                    space = describe_space(env.action_space)
                    about = {"frame_shape": env.frame_shape, "action_space": space, "action_names": action_names(env)}
                    send(connection, about)
                else:
                    send(connection, {}, _answer(env, header, arrays))
            except (InputError, EnvError) as error:
                kind = "input" if isinstance(error, InputError) else "env"
                send(connection, {"error": kind, "text": str(error)})
            except Exception:
                send(connection, {"error": "other", "text": traceback.format_exc()})
    except (EOFError, OSError):
        pass  # the parent has closed the pipe or ended
    finally:
        if env is not None:
            env.close()


def _make(setup: dict[str, Any]) -> VectorEnv:
    task = setup["task"]
    register_env(task.partition("/")[0], entry_point=setup["entry_point"])
    spec = env_family(task)
    if spec.set_up_worker is not None:
        spec.set_up_worker(setup["set_up"])
    config = EnvironmentConfig(**setup["config"])
    return make(task, setup["num_envs"], training=setup["training"], config=config, num_workers=1)


def _answer(env: VectorEnv, header: dict[str, Any], arrays: list[Array]) -> list[Array]:
    match header["call"]:
        case "step":
            return list(env.step(arrays[0], header["indices"]))
        case "reset":
            return [env.reset(header["indices"], header["seeds"])]
        case _:
            return [env.render(header["index"])]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
