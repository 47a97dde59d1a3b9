"""What is printed: messages beside a run's progress (the logger "playvirtual", on stderr), results on stdout, and the
words of counts and durations in both."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress

from playvirtual.errors import RunError

logger = logging.getLogger("playvirtual")


class StderrHandler(logging.Handler):
    """Prints `playvirtual: message` to the present stderr; a stderr that cannot be written to never fails a run."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(record.getMessage())
        except Exception:
            self.handleError(record)


def say(text: str) -> None:
    """Prints one line `playvirtual: text` to the present stderr, if that can be written to."""
    with suppress(OSError):  # a full disk, or a pipe that nothing reads any more
        print(f"playvirtual: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Prints the logger's messages to stderr from now on, as the command line does, unless it has a handler already."""
    if not logger.handlers:
        logger.addHandler(StderrHandler())
        logger.setLevel(logging.INFO)


def log_to_stderr_by_default() -> None:
    """Prints messages to stderr unless the program that imported this package has set up logging itself."""
    if not logger.hasHandlers():
        log_to_stderr()


def show(text: str) -> None:
    """Prints the result of a command; raises a `RunError` if it cannot be written."""
    try:
        print(f"{text}\n", end="", flush=True)  # at once: `| head -1` may be gone before a second write
    except OSError as error:
        # The interpreter would try to write the rest of the buffer again when it ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RunError(f"stdout: cannot be written: {error.strerror}") from error


def duration(seconds: float) -> str:
    """The duration in one unit, as in "42 s", "7 min", "3.5 h", "2.1 d"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def counted(count: int, word: str) -> str:
    """The count with its word, as in "1 run", "2 runs"."""
    return f"{count} {plural(count, word)}"


def plural(count: int, word: str) -> str:
    """The word in the singular or plural that the count asks for."""
    return word if count == 1 else f"{word}s"


def replace_unencodable() -> None:
    """Makes stdout and stderr print `?` for characters that the locale cannot encode, instead of failing the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
