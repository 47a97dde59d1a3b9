"""What can go wrong with a run, shown as a single line: bad input, a failed run, a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """The user's to mend: a field, the value it was given, and what is allowed, in one line. Exit code 2."""


class InUse(InputError):
    """Another process holds the run folder."""


class RunError(RuntimeError):
    """A run that had to stop: why, and its last good checkpoint, in one line. Exit code 1."""


class Crash(RunError):
    """A run that an error nobody foresaw has stopped, its cause: shown with its traceback, then as any other."""


class Interrupted(KeyboardInterrupt):
    """A run that a signal stopped after its checkpoint was written. Exit code: 128 and the signal's number."""

    def __init__(self, received: signal.Signals, resume: str) -> None:
        super().__init__(f"stopped by {received.name}; to go on: {resume}")
        self.exit_code = 128 + received


def unknown(kind: str, value: str, allowed: Iterable[str], meant: str | None = None) -> InputError:
    """The error for a name that is not one of `allowed`, with what was `meant` or else the nearest if there is any."""
    names = sorted(allowed)
    nearest = meant or _nearest(value, names)
    hint = f"did you mean {nearest!r}? " if nearest else ""
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return InputError(f"{kind}: {value!r} is not known; {hint}allowed: {shown}")


def _nearest(value: object, names: list[str]) -> str | None:
    """The name that differs in its case only, else the one most alike."""
    if not isinstance(value, str):
        return None
    same = [name for name in names if name.lower() == value.lower()]
    return next(iter(same or get_close_matches(value, names, n=1, cutoff=0.5)), None)


@contextmanager
def writing(field: str, path: Path) -> Iterator[None]:
    """What the system says against writing to the path that `field` names, as one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{field}: {str(path)!r} cannot be written: {reason}; allowed: where files can be made"
        ) from None


def out_of_memory(error: BaseException) -> str | None:
    """One line if what failed is that something did not fit into memory, Python's, NumPy's or PyTorch's."""
    signs = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return None
    reason = (text.splitlines() or [type(error).__name__])[0]
    return f"memory: {reason}; what decides it: batch_size, K, M, the sizes of networks and pictures, capacity, lanes"
