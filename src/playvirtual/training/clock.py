"""Where the wall-clock time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up seconds by name, beside the time since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._spent: dict[str, float] = {}

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Counts the time inside the block towards `part`."""
        before = time.monotonic()
        try:
            yield
        finally:
            self._spent[part] = self._spent.get(part, 0.0) + time.monotonic() - before

    def seconds(self) -> dict[str, float]:
        """Seconds in all and by part."""
        return {"seconds": round(time.monotonic() - self._began, 3)} | {
            part: round(spent, 3) for part, spent in self._spent.items()
        }
