"""What is said beside a run's progress."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """One line to be seen by whoever started the run; nobody's if it cannot be written."""
    with suppress(OSError):
        print(f"playvirtual: {text}", file=sys.stderr, flush=True)
