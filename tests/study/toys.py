"""Runs of the built-in toys, as small as a run can be."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {"device": "cpu", "quiet": True, "log_every": 20, "checkpoint_every": 0, "hidden": 16}
CATCH = {**COMMON, "steps": 100, "learning_starts": 40, "eval_episodes": 2, "eval_every": 0, "batch_size": 8}
REACH = {
    **COMMON,
    "steps": 80,
    "learning_starts": 40,
    "eval_episodes": 2,
    "eval_every": 0,
    "batch_size": 8,
    "auxiliary_batch_size": 4,
}
TOYS = {"toy/catch": CATCH, "toy/reach": REACH}
