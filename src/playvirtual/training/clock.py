"""Where the wall-clock time of a run goes."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Sums the seconds spent in named parts, beside the time since it was made.

    `earlier`, the `seconds()` of a clock at a checkpoint of `step`, makes both continue from there. With
    `synchronize` every part includes what it started on that CUDA device.
    """

    def __init__(
        self, earlier: Mapping[str, float] | None = None, step: int = 0, *, synchronize: torch.device | None = None
    ) -> None:
        self.parts = dict(earlier or {})
        self._start = time.monotonic() - self.parts.pop("seconds", 0.0)
        self._last_line = (self.seconds()["seconds"], step)
        self._device = synchronize if synchronize is not None and synchronize.type == "cuda" else None

    def leave_out(self, seconds: float) -> None:
        """Counts so many of the seconds since it was made as none of the run's."""
        self._start += seconds

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Adds the time inside the block to `part`."""
        start = time.monotonic()
        try:
            yield
            if self._device is not None:
                torch.cuda.synchronize(self._device)
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.monotonic() - start

    def seconds(self) -> dict[str, float]:
        """Seconds in all and by part."""
        return {"seconds": round(time.monotonic() - self._start, 3)} | {
            part: round(spent, 3) for part, spent in self.parts.items()
        }

    def line(self, step: int) -> dict[str, Any]:
        """A line of timing.jsonl: steps/s since the last line, seconds and shares since the start, peak memory."""
        now = self.seconds()
        (last_seconds, last_step), self._last_line = self._last_line, (now["seconds"], step)
        rate = (step - last_step) / max(now["seconds"] - last_seconds, 1e-3) if step > last_step else None
        shares = {part: round(spent / max(now["seconds"], 1e-9), 4) for part, spent in self.parts.items()}
        return {
            "step": step,
            **now,
            **({} if rate is None else {"steps_per_second": round(rate, 2)}),
            "shares": shares,
            **_peak_memory(),
        }


def _peak_memory() -> dict[str, float]:
    """The most memory that this process has held so far, in MB."""
    memory = {"memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        memory["gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return memory
