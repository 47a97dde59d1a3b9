"""Times the parts of a running program."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch


class Stopwatch:
    """Seconds spent inside methods, by part; the time of an inner part counts for the outer one too.

    As a context manager it restores the methods at the end.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # in the order in which the parts were named
        self.calls: dict[str, int] = {}  # of each method, by `owner.method`
        self._before: list[tuple[Any, str, Any]] = []  # owner, method, the owner's own attribute of that name

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Counts the calls of `owner.method`, which must exist, for `part` from now on."""
        called = getattr(owner, method)
        name = f"{getattr(owner, '__name__', type(owner).__name__)}.{method}"
        self.seconds.setdefault(part, 0.0)
        self.calls.setdefault(name, 0)

        def timed(*arguments: Any, **options: Any) -> Any:
            before = time.perf_counter()
            try:
                return called(*arguments, **options)
            finally:
                self.seconds[part] += time.perf_counter() - before
                self.calls[name] += 1

        self._before.append((owner, method, vars(owner).get(method)))
        setattr(owner, method, timed)

    def clear(self) -> None:
        """Resets all counts to 0."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.calls = dict.fromkeys(self.calls, 0)

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, method, own in reversed(self._before):
            if own is None:
                delattr(owner, method)
            else:
                setattr(owner, method, own)


def synchronize() -> None:
    """Waits for the GPU, if there is one, since a clock without it times the launches only."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
