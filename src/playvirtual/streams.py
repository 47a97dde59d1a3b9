"""What is printed, on terminals and in files whose encoding is poorer than UTF-8."""

from __future__ import annotations

import io
import sys


def replace_what_cannot_be_encoded() -> None:
    """From now on stdout and stderr show a question mark for it: a locale must not end a run that went well."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
