"""Environments: Atari, DMControl, MinAtar, toys and anything from Gymnasium, behind one small protocol."""

from playvirtual.envs.protocol import Environment, Step
from playvirtual.envs.registry import check, check_name, family, make, task_names

__all__ = ["Environment", "Step", "check", "check_name", "family", "make", "task_names"]
