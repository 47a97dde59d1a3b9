"""The command `playvirtual`, also as `python -m playvirtual`: a process of its own, which Ctrl-C ends in one line."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT


def run() -> int:
    """Runs the command of this process; returns its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, _stop)
    sys.unraisablehook = _unraisable
    try:
        from playvirtual.cli.main import main

        return main()
    except KeyboardInterrupt:  # while modules are imported, or another one while the first is reported
        return INTERRUPTED
    finally:
        _flush()


def _flush() -> None:
    """Writes what is left of stdout; what nothing reads any more, as after `| head -1`, is dropped without a word."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(number: int, frame: FrameType | None) -> None:
    """The first Ctrl-C stops the command wherever it is; a second one ends the process at once."""
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _unraisable(error: Any) -> None:
    """Ends the process if Ctrl-C comes where Python cannot raise anything, as in a finalizer."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(error)


if __name__ == "__main__":
    sys.exit(run())
