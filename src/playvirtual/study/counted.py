"""Counts for people."""

from __future__ import annotations


def counted(count: int, word: str) -> str:
    """As in "1 run", "2 runs"."""
    return f"{count} {plural(count, word)}"


def plural(count: int, word: str) -> str:
    """The word as it stands after that count."""
    return word if count == 1 else f"{word}s"
