"""Atomic and synced writes, and the lock that lets one process write to a run folder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from playvirtual import files
from playvirtual.errors import InputError, InUse, shown
from playvirtual.files import Missing, Unreadable


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces a file's content completely or not at all: writes another file beside it, then renames that."""
    partial = path.with_name(path.name + ".partial")
    write_synced(partial, data)
    partial.rename(path)
    fsync(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file whose content is on the disk when this returns."""
    with files.open_for_writing(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync(path: Path) -> None:
    """Makes sure that a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder, and its parents where they are missing, that are still there after a power failure."""
    if not path.parent.exists():
        make_folder(path.parent)
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    if is_new:
        with suppress(PermissionError):  # a folder that may be written to, but not opened
            fsync(path.parent)


LOCK = "run.lock"
LONGEST_HOLDER = 512  # bytes of what a lock says


class RunLock(NamedTuple):
    """A locked run folder, and what its lock says of the process that holds it."""

    run: Path
    holder: bytes

    def lost(self) -> str:
        """Why the folder at this path is no longer locked by this process; "" if it is.

        Where somebody has removed the lock, or moved the folder away, another process may have locked what is there.
        """
        try:
            found = files.read(self.run / LOCK, "run_dir", LONGEST_HOLDER)
        except Missing:
            return "was removed" if self.run.is_dir() else ""  # a folder that is gone is said in other words
        except Unreadable as error:
            if error.refused:  # as where too many files are open; the writing itself will say so
                return ""
            found = b""
        return "" if found == self.holder else "is not that of this process any more"


@contextmanager
def lock_run_folder(run: Path) -> Iterator[RunLock]:
    """Locks the run folder for this process; raises `InUse` if another process has locked it."""
    try:
        # Not through a link: the lock of a foreign run folder must not empty a file elsewhere.
        descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, f"{LOCK} is not a regular file")
    except OSError as error:
        reason = f"{LOCK} is a link" if error.errno == errno.ELOOP else error.strerror
        raise InputError(f"run_dir: {shown(run)} cannot be written: {reason}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, LONGEST_HOLDER).decode(errors="replace").strip() or "another process"
            raise InUse(f"run_dir: {str(run)!r} is in use by {holder}; allowed: one process per run folder") from None
        lock = RunLock(run, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, lock.holder, 0)
        yield lock
    finally:
        os.close(descriptor)
