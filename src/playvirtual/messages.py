"""The messages that a run prints beside its progress: the logger "playvirtual" and its handler for stderr."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("playvirtual")


class StderrHandler(logging.Handler):
    """Prints `playvirtual: message` to the present stderr; a stderr that cannot be written to never fails a run."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"playvirtual: {record.getMessage()}", file=sys.stderr, flush=True)
        except OSError:
            pass  # a full disk, or a pipe that nothing reads any more
        except Exception:
            self.handleError(record)


def log_to_stderr() -> None:
    """Prints the logger's messages to stderr from now on, as the command line does, unless it has a handler already."""
    if not logger.handlers:
        logger.addHandler(StderrHandler())
        logger.setLevel(logging.INFO)


def log_to_stderr_by_default() -> None:
    """Prints messages to stderr unless the program that imported this package has set up logging itself."""
    if not logger.hasHandlers():
        log_to_stderr()
