"""SIGINT, SIGTERM and SIGHUP: the first asks the run to stop at its next step, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from contextlib import suppress
from types import FrameType

from playvirtual.errors import Interrupted

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """While entered, in the main thread, remembers the first signal; elsewhere signals are not ours to take.

    A SIGHUP that is ignored already, as under nohup, stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            taken = [n for n in SIGNALS if n.name != "SIGHUP" or signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in taken}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        _leave_lost_terminal()
        if self.received is not None and signal.Signals(number).name == "SIGHUP":
            return  # a terminal that goes says so several times: itself, by its shell, and when that ends
        if self.received is not None:
            _show_cursor()
            _write_error(b"\nplayvirtual: ended at once; what is left is the last checkpoint\n")
            os._exit(128 + number)
        self.received = signal.Signals(number)
        _write_error(b"\nplayvirtual: stopping; once more: at once\n")

    def check(self, resume: str) -> None:
        """Raises `Interrupted` with the command that resumes the run if a signal has come."""
        if self.received is not None:
            raise Interrupted(self.received, resume)


def _write_error(text: bytes) -> None:
    with suppress(OSError):  # nobody is there any more to read it
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text)


def _show_cursor() -> None:
    """Undoes what a progress bar does to a terminal, for a process that ends before the bar can."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.isatty(descriptor):
                os.write(descriptor, SHOW_CURSOR)


def _leave_lost_terminal() -> None:
    """Sends what is still to be printed nowhere if its terminal was closed: every write to it would be an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
