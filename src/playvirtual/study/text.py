"""Counts and durations as people read them."""

from __future__ import annotations


def counted(count: int, word: str) -> str:
    """The count with its word, as in "1 run", "2 runs"."""
    return f"{count} {plural(count, word)}"


def plural(count: int, word: str) -> str:
    """The word in the singular or plural that the count asks for."""
    return word if count == 1 else f"{word}s"


def duration(seconds: float) -> str:
    """The duration in one unit, as in "42 s", "7 min", "3.5 h", "2.1 d"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
