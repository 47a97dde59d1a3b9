"""How many processor cores there are for a run."""

from __future__ import annotations

import os


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share() -> int:
    """How many are this run's own: OMP_NUM_THREADS where it is set, as sweeps do, but never more than it may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(wanted), cores()) if wanted.isdecimal() and int(wanted) else cores()
