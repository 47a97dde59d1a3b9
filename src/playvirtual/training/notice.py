"""What is said beside a run's progress."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line to be seen by whoever started the run."""
    print(f"playvirtual: {text}", file=sys.stderr, flush=True)
