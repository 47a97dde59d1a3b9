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


@contextmanager
def compiling() -> Iterator[None]:
    """Around whatever compiles an update: no garbage collector, and no kernel that writes into an input's buffer.

    The collector would walk again and again through the very many objects that compiling makes and keeps.

    PyTorch's compiler measures a few variants of each kernel. A kernel that writes into the buffer of an input that
    nothing reads any more is measured together with a copy of that input, which may take longer than a small kernel
    itself and so hide which variant is the fastest. To do without costs memory that updates do not lack. C51's
    loss, the kernel that this was meant for, has since been timed with and without: equal (docs/performance.md).
    """
    from torch._inductor import config

    collects, reuses = gc.isenabled(), getattr(config, "inplace_buffers", None)  # None in versions without it
    gc.disable()
    if reuses is not None:
        config.inplace_buffers = False
    try:
        yield
    finally:
        if reuses is not None:
            config.inplace_buffers = reuses
        if collects:
            gc.enable()


@contextmanager
def compile_once(key: str, folder: Path) -> Iterator[None]:
    """Around work that compiles what `key` stands for: one process on this machine does it at a time.

    `folder` lies in the compiler's cache. A mark there says that the code has been compiled, and then nobody waits. A
    process that dies while it compiles makes room for the next, and a folder that cannot be written stops nobody.
    """
    mark = folder / key
    if mark.exists():
        with compiling():
            yield
        return
    logger.info("compiling the update, which takes up to a minute the first time on a machine")
    with _lock(mark.with_suffix(".lock")) as descriptor:
        if descriptor is not None and _is_held_elsewhere(descriptor):
            logger.info("waiting for another run that compiles the same update")
            _wait(descriptor, mark)
        with compiling():
            yield
        with suppress(OSError):
            mark.touch()


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
