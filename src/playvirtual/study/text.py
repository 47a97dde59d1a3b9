"""Counts and durations as people read them."""

from __future__ import annotations

from playvirtual.messages import duration as duration


def counted(count: int, word: str) -> str:
    """The count with its word, as in "1 run", "2 runs"."""
    return f"{count} {plural(count, word)}"


def plural(count: int, word: str) -> str:
    """The word in the singular or plural that the count asks for."""
    return word if count == 1 else f"{word}s"
