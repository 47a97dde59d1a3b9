"""The one kind of error that is the user's to mend: shown as a single line, exit code 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A field, the value it was given, and what is allowed, in one line."""


def unknown(kind: str, value: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that is not one of `allowed`, with the nearest one if there is any."""
    names = sorted(allowed)
    nearest = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return InputError(f"{kind}: {value!r} is not known; {hint}allowed: {shown}")
