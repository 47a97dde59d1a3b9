"""What commands print: results on stdout, in any locale, and an error of one line where stdout cannot be written."""

from __future__ import annotations

import io
import os
import sys

from playvirtual.errors import RunError


def show(text: str) -> None:
    """Prints the result of a command; raises a `RunError` if it cannot be written."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter would try to write the rest of the buffer again when it ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RunError(f"stdout: cannot be written: {error.strerror}") from error


def replace_unencodable() -> None:
    """Makes stdout and stderr print `?` for characters that the locale cannot encode, instead of failing the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
