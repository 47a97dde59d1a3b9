"""The errors that are shown to users as a single line: bad input, a failed run, a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

LONGEST_SHOWN = 300  # characters of a value in an error


class InputError(ValueError):
    """Bad input: one line with the field, its value, and what is allowed. The exit code is 2."""


class InUse(InputError):
    """The run folder is locked by another process."""


class RunError(RuntimeError):
    """A run that had to stop: one line with the reason and the last good checkpoint. The exit code is 1."""


class Crash(RunError):
    """A run that stopped because of an unexpected error, which is its cause and is shown with a traceback."""


class EnvError(RunError):
    """An environment that breaks its contract or raises: one line with its name, the moment and what is allowed."""


class StopTraining(Exception):
    """Raised by a callback: the run ends early, with a checkpoint and an evaluation; its text is the reason."""


class Interrupted(KeyboardInterrupt):
    """A run that a signal stopped after its checkpoint was written. The exit code is 128 + the signal's number."""

    def __init__(self, received: signal.Signals, resume_command: str) -> None:
        super().__init__(f"stopped by {received.name}; to resume: {resume_command}")
        self.exit_code = 128 + received


def shown(value: object) -> str:
    """A value as an error shows it: in quotes, in one line, and not longer than a line can be."""
    try:
        return shown_text(repr(str(value) if isinstance(value, Path) else value))
    except (ValueError, RecursionError):  # a whole number of thousands of digits
        return f"a {type(value).__name__}"


def shown_text(text: str) -> str:
    """The text, without its middle if it is long."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN // 2]}…{text[-LONGEST_SHOWN // 2 :]}"


def unknown(kind: str, value: str, allowed: Iterable[str], meant: str | None = None) -> InputError:
    """The error for a name that is not one of `allowed`; it suggests `meant`, or else the closest name."""
    names = sorted(allowed)
    suggestion = meant or closest(value, names)
    hint = f"did you mean {suggestion!r}? " if suggestion else ""
    listed = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return InputError(f"{kind}: {shown(value)} is not known; {hint}allowed: {listed}")


def unregistered(kind: str, value: str, allowed: Iterable[str], meant: str | None = None) -> InputError:
    """`unknown` for a name that an extension might register which is not there."""
    return InputError(
        f"{unknown(kind, value, allowed, meant)}, and what an extension registers (installed, or --import)"
    )


def closest(value: object, names: Sequence[str], cutoff: float = 0.5) -> str | None:
    """The name that differs in case only, else the most similar one, if one is similar by `cutoff` of 1."""
    if not isinstance(value, str):
        return None
    same = [name for name in names if name.lower() == value.lower()]
    return next(iter(same or get_close_matches(value, names, n=1, cutoff=cutoff)), None)


def install_hint(extra: str) -> str:
    """How to install what an extra of this package names: in a clone of it, and where there is none."""
    try:
        listed = [line.partition(";") for line in requires("playvirtual") or ()]
    except PackageNotFoundError:  # run from its source
        listed = []
    own = [name.strip() for name, _, marker in listed if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
    elsewhere = f"; elsewhere: pip install {' '.join(map(repr, own))}" if own else ""
    return f"in a clone: pip install -e '.[{extra}]'{elsewhere}"


def in_one_line(error: BaseException) -> str:
    """An error of foreign code: its type, its text, and the file and line that raised it."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{shown_text(text)}{place}"


@contextmanager
def writing(field: str, path: Path) -> Iterator[None]:
    """Turns an error while writing to `path`, which the option `field` names and may be no path, into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(
            f"{field}: {shown(path)} cannot be written: {reason}; allowed: where files can be made"
        ) from None


def out_of_memory(error: BaseException) -> str | None:
    """One line if the error is that Python, NumPy or PyTorch could not allocate memory, else None."""
    signs = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return None
    reason = (text.splitlines() or [type(error).__name__])[0]
    return f"memory: {reason}; what decides it: batch_size, K, M, the sizes of networks and images, capacity, eval_envs"
