"""SIGINT and SIGTERM: the first asks the run to stop at its next step, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from playvirtual.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, in the main thread, remembers the first signal; elsewhere signals are not ours to take."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        with suppress(OSError):  # Ctrl-C ends what reads a pipe, too, and must not end the run before its checkpoint
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"\nplayvirtual: stopping; once more: at once\n")

    def check(self, resume: str) -> None:
        """Raises `Interrupted` with the command that resumes the run if a signal has come."""
        if self.received is not None:
            raise Interrupted(self.received, resume)
