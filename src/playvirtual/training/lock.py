"""One process per run folder: a lock that the operating system releases when its holder is gone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playvirtual.errors import InputError, InUse

NAME = "run.lock"


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Holds the run folder for this process; raises `InUse` if another one does."""
    try:
        descriptor = os.open(run / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"run_dir: {str(run)!r} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 64).decode(errors="replace").strip() or "another process"
            raise InUse(f"run_dir: {str(run)!r} is in use by {holder}; allowed: one process per run folder") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
