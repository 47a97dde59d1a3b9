"""n-step returns that stop where an episode stops."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    """R = Σ_{i<m} γ^i r_{t+i}, to which discount · V(s_{t+m}) is added."""

    returns: Tensor  # (B,)
    steps: Tensor  # (B,) m: n, or fewer where the episode ends before
    discounts: Tensor  # (B,) γ^m, or 0 after a terminal


def n_step(rewards: Tensor, terminals: Tensor, acted: Tensor, episodes: Tensor, gamma: float) -> NStep:
    """All inputs (B, n): what follows t, t itself included, whatever episode it belongs to."""
    mine = (episodes == episodes[:, :1]) & acted  # (B, n): a transition of the episode that t belongs to
    powers = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
    steps = mine.sum(1)
    alive = ~(terminals & mine).any(1)
    return NStep((rewards * mine * powers).sum(1), steps, gamma ** steps.to(rewards.dtype) * alive)
