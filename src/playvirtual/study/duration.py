"""Durations for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """As in "42 s", "7 min", "3.5 h", "2.1 d"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
