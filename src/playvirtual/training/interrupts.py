"""SIGINT, SIGTERM and SIGHUP: the first one stops the run at its next step, a second one ends the process at once."""

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
    """While entered, in the main thread, records the first signal; in other threads it handles none.

    A SIGHUP that is ignored already, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handled = [n for n in SIGNALS if n.name != "SIGHUP" or signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            if handler is None:  # it was not installed from Python and cannot be restored from here
                continue
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        _leave_closed_terminal()
        if self.received is not None and signal.Signals(number).name == "SIGHUP":
            return  # a closed terminal sends several: itself, by its shell, and when the shell ends
        if self.received is not None:
            _show_cursor()
            _write_error(b"\nplayvirtual: stopped at once; the run can be resumed from its last checkpoint\n")
            os._exit(128 + number)
        self.received = signal.Signals(number)
        _write_error(b"\nplayvirtual: stopping after this step, with a checkpoint; a second signal stops at once\n")

    def check(self, resume_command: str) -> None:
        """Raises `Interrupted` with the command that resumes the run if a signal was received."""
        if self.received is not None:
            raise Interrupted(self.received, resume_command)


def _write_error(text: bytes) -> None:
    with suppress(OSError):  # stderr may be closed or full
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text)


def _show_cursor() -> None:
    """Shows the cursor that a progress bar hides, for a process that ends before the bar can."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.isatty(descriptor):
                os.write(descriptor, SHOW_CURSOR)


def _leave_closed_terminal() -> None:
    """Redirects stdout and stderr to the null device if their terminal was closed: writing to it would fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
