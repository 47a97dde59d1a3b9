"""One step down the gradient: norms limited part by part, then Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from playvirtual.agents.clipping import clip_by_part
from playvirtual.method import kernels

if kernels.AVAILABLE:
    from playvirtual.agents.fused_descent import FusedDescent


class Descent:
    """A step of Adam, which owns the state, on gradients whose norms are limited; on a GPU a few launches in all."""

    def __init__(self, adam: torch.optim.Adam, parts: Mapping[str, Sequence[nn.Parameter]], limit: float) -> None:
        """What is in no part is not limited; a part of an infinite limit is only measured."""
        self.adam, self.parts, self.limit = adam, parts, limit
        self._fused: FusedDescent | None = None

    def step(self) -> dict[str, Tensor]:
        """Uses the gradients that the parameters have; returns the parts' norms before they were limited."""
        if self._can_be_fused():
            assert self._fused is not None
            return self._fused.step()
        norms = clip_by_part(self.parts, self.limit)
        self.adam.step()
        return norms

    def _can_be_fused(self) -> bool:
        if not kernels.in_use() or not _plain(self.adam):
            return False
        learning = [p for p in self.adam.param_groups[0]["params"] if p.grad is not None]
        if any(p not in self.adam.state for p in learning):  # Adam makes its state at its first step
            return False
        if not all(p.grad.dtype == torch.float32 and same_order(p.grad, p) for p in learning):
            return False
        if self._fused is None or not self._fused.fits():
            if torch.cuda.is_current_stream_capturing():  # too late for a new table
                return False
            self._fused = FusedDescent(self.adam, self.parts, self.limit)
        return True


def load_adam(adam: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Takes over what another Adam's `state_dict` gave, but not on which kind of device that one was."""
    own = [group["capturable"] for group in adam.param_groups]
    adam.load_state_dict(dict(state))
    for group, capturable in zip(adam.param_groups, own, strict=True):
        group["capturable"] = capturable


def _plain(adam: torch.optim.Adam) -> bool:
    """Whether it is an Adam without extras, of one group, that counts its steps on a GPU."""
    group, *others = adam.param_groups
    return group["capturable"] and not (others or group["weight_decay"] or group["amsgrad"] or group["maximize"])


def same_order(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have their numbers in the same order; a dimension of one number has none."""
    return all(n == 1 or at == bt for n, at, bt in zip(a.shape, a.stride(), b.stride(), strict=True))
