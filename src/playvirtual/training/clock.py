"""Where the wall-clock time of a run goes."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Adds up seconds by name, beside the time since it was made; both go on where an earlier clock stopped."""

    def __init__(self, earlier: Mapping[str, float] | None = None, step: int = 0) -> None:
        self._spent = dict(earlier or {})
        self._began = time.monotonic() - self._spent.pop("seconds", 0.0)
        self._last = (self.seconds()["seconds"], step)  # of the last line

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

    def line(self, step: int) -> dict[str, Any]:
        """What timing.jsonl gets: the rate since the last line, seconds and shares since the start, peak memory."""
        now = self.seconds()
        (before, first), self._last = self._last, (now["seconds"], step)
        rate = (step - first) / max(now["seconds"] - before, 1e-3) if step > first else None
        shares = {part: round(spent / max(now["seconds"], 1e-9), 4) for part, spent in self._spent.items()}
        return {
            "step": step,
            **now,
            **({} if rate is None else {"steps_per_second": round(rate, 2)}),
            "shares": shares,
            **_memory(),
        }


def _memory() -> dict[str, float]:
    """The largest amount this process has held so far, in MB."""
    found = {"memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return found
