"""Runs a command of `playvirtual` on a disk that kills, tears, fails or delays in the middle of checkpoint writing.

    python benchmarks/faulty_disk.py WAY NUMBER train toy/catch --run-dir RUN …

NUMBER counts the operations below RUN/checkpoints: making, writing, syncing, linking, renaming and removing. At that
one a disk that

- kills ends the process by SIGKILL before it (`kill`), or in the middle of the data where it is a write (`torn`);
- fails raises the error of a full (`full`) or broken (`broken`) disk, from there on every time;
- delays (`slow`) takes NUMBER milliseconds for each of them.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("kill", "torn", "full", "broken", "slow")
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}


class FaultyDisk:
    """Counts operations below a folder and does harm at the one with the given number, from 1."""

    def __init__(self, way: str, number: int, folder: Path) -> None:
        self.way, self.number, self.folder = way, number, folder
        self._count, self._lock = 0, threading.Lock()

    def install(self) -> None:
        """Replaces the functions that change files, for this process."""
        for name in ("mkdir", "unlink", "rmdir", "rename", "link", "fsync"):
            setattr(os, name, self._counting(getattr(os, name)))
        io.open = builtins.open = self._opening(io.open)  # type: ignore[assignment]

    def operate(self, tear: Callable[[], object] | None = None) -> None:
        """One operation is about to happen; `tear` does half of it, where it has halves."""
        with self._lock:
            self._count += 1
            if self.way == "slow":
                time.sleep(self.number / 1000)
                return
            if self._count < self.number:
                return
            if self.way in ERRORS:
                raise OSError(ERRORS[self.way], os.strerror(ERRORS[self.way]), str(self.folder))
            if self.way == "torn" and tear is None:
                return  # the next write is torn
            if tear is not None and self.way == "torn":
                tear()
            os.kill(os.getpid(), signal.SIGKILL)

    def _inside(self, path: Any, dir_fd: int | None = None) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / path
        return Path(os.path.abspath(path)).is_relative_to(self.folder)

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counting(path: Any, *rest: Any, **options: Any) -> Any:
            if self._inside(path, options.get("dir_fd")):
                self.operate()
            return original(path, *rest, **options)

        return counting

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            opened = original(file, mode, *rest, **options)
            writes = not isinstance(file, int) and "w" in mode and self._inside(file)
            return _Written(opened, self) if writes else opened

        return opening


class _Written:
    """A file open for writing whose writes are operations of the faulty disk."""

    def __init__(self, file: Any, disk: FaultyDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, data: Any) -> Any:
        def tear() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.operate(tear)
        return self._file.write(data)


def main() -> int:
    """Runs the command with the faulty disk in place."""
    from playvirtual.cli.main import main as playvirtual

    way, number, *words = sys.argv[1:]
    run = Path(words[words.index("--run-dir") + 1]).resolve()
    FaultyDisk(way, int(number), run / "checkpoints").install()
    return playvirtual(words)


if __name__ == "__main__":
    sys.exit(main())
