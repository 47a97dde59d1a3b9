"""How many processor cores there are for a run."""

from __future__ import annotations

import os


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share() -> int:
    """How many are this run's own: OMP_NUM_THREADS where it is set, as sweeps do, otherwise all it may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else cores()
