"""How updates are compiled: by one process, while others that need the same wait and find its code in the cache."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from playvirtual.messages import logger

POLL_SECONDS = 0.2
LONGEST_WAIT = 600.0  # seconds; a process that compiles for longer than this is not waited for


def key_of(*facts: object) -> str:
    """A file name that stands for compiled code: equal for two processes whose facts print alike."""
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:24]


@cache
def sources() -> str:
    """Equal for two processes with the same sources of this package, of which any may be compiled."""
    package = Path(__file__).parents[2]
    return key_of(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(package.rglob("*.py"))))


def set_up_compiler() -> None:
    """Makes PyTorch's compiler choose among the variants of a kernel by the kernel's own time.

    It measures each variant. A kernel that overwrites one of its inputs is measured together with a copy of that input,
    which takes longer than a small kernel does, so that chance chose, and one variant took eight times as long as
    another. Kernels overwrite their inputs only to save memory, which updates do not lack.
    """
    from torch._inductor import config

    with suppress(AttributeError):  # a version without this setting compiles as it does by itself
        config.inplace_buffers = False


@contextmanager
def compile_once(key: str, folder: Path) -> Iterator[None]:
    """Around work that compiles what `key` stands for: one process on this machine does it at a time.

    `folder` lies in the compiler's cache. A mark there says that the code has been compiled, and then nobody waits. A
    process that dies while it compiles makes room for the next, and a folder that cannot be written stops nobody.
    Python's garbage collector is off around the work.
    """
    mark = folder / key
    if mark.exists():
        with _garbage_collector_off():
            yield
        return
    logger.info("compiling the update, which takes up to a minute the first time on a machine")
    with _lock(mark.with_suffix(".lock")) as descriptor:
        if descriptor is not None and _is_held_elsewhere(descriptor):
            logger.info("waiting for another run that compiles the same update")
            _wait(descriptor, mark)
        with _garbage_collector_off():
            yield
        with suppress(OSError):
            mark.touch()


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """For work that makes very many objects and drops few of them, as compiling does.

    The collector would walk through all of them again and again: it took a sixth of the time to Pong's first update.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _lock(path: Path) -> Iterator[int | None]:
    """A descriptor of the file that is locked, or None where it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # gives the lock back


def _is_held_elsewhere(descriptor: int) -> bool:
    """Takes the lock unless another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False


def _wait(descriptor: int, mark: Path) -> None:
    """Until the code has been compiled, or this process has the lock and compiles it itself."""
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline and not mark.exists() and _is_held_elsewhere(descriptor):
        time.sleep(POLL_SECONDS)
