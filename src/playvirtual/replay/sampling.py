"""Which entries are drawn: in proportion to a weight, by cumulative sum and binary search on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from playvirtual.replay.buffer import Replay


def search(weights: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """(count,) positions drawn independently with probability weights / Σ weights; never one of weight 0."""
    # float64: a float32 running sum of 100k priorities would drop the small ones.
    cumulative = weights.cumsum(0, dtype=torch.float64)
    u = torch.rand(count, generator=generator, device=weights.device, dtype=torch.float64)
    # The first position whose running sum exceeds u·Σ; the factor keeps rounding from reaching Σ itself.
    drawn = torch.searchsorted(cumulative, u * (1 - 2**-50) * cumulative[-1], right=True)
    return drawn.clamp_max(len(weights) - 1)  # only if all weights are 0


class Priorities:
    """Prioritised replay: P(i) ∝ p_i^α, importance weights (1 / P(i))^β scaled so that the batch's largest is 1.

    An entry has weight 0 until the `span` entries after it are there, then priority 1 until it is first drawn,
    and 0 again once the frames before it are overwritten: the weights alone say where a sequence may start.
    """

    def __init__(self, replay: Replay, alpha: float, span: int) -> None:
        self.replay, self.alpha, self.span = replay, alpha, span
        self.values = torch.zeros(replay.capacity, device=replay.device)  # p^α
        self._followed = 0  # entries of the replay that have been taken note of

    def follow(self) -> None:
        """Takes note of the entries added to the replay since the last call."""
        capacity, stack = self.replay.capacity, self.replay.frame_stack
        while self._followed < self.replay.head:
            entry = self._followed
            if entry >= capacity:  # it replaced an older one, which the next stack − 1 entries need for their frames
                self._forget(entry % capacity, stack)
            if entry >= self.span:
                ready = (entry - self.span) % capacity
                self.values[ready].copy_(self.replay.acted[ready])  # one launch, and the host need not know the flag
            self._followed += 1

    def _forget(self, start: int, count: int) -> None:
        """Gives weight 0 to `count` positions from `start` on, around the ring's seam where there is one."""
        self.values[start : start + count].zero_()
        if start + count > len(self.values):
            self.values[: start + count - len(self.values)].zero_()

    def sample(self, count: int, beta: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """(count,) positions and their importance weights."""
        index = search(self.values, count, generator)
        weight = (1.0 / (self.values[index] + 1e-5)) ** beta
        return index, weight / weight.max()

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Gives the drawn entries their new priorities."""
        self.values[index] = priority.clamp(1e-6, 1e6) ** self.alpha

    def state_dict(self) -> dict[str, Any]:
        """The priorities and how many entries have been taken note of."""
        return {"values": self.values, "followed": self._followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, in place."""
        self.values.copy_(state["values"])
        self._followed = state["followed"]
