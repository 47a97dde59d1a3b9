"""One step down the gradient: norms limited part by part, then Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from playvirtual.agents.clipping import clip_by_part
from playvirtual.method import kernels

if kernels.AVAILABLE:
    from playvirtual.agents.fused_descent import FusedDescent


class Descent:
    """An Adam, which owns the state, and the norms that it respects; on a GPU a few launches for all tensors."""

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
        on_device = self.adam.param_groups[0]["capturable"]  # then Adam counts its steps on the GPU
        if not kernels.in_use() or not on_device or not self.adam.state:  # the first step makes the state
            return False
        if self._fused is None or not self._fused.fits():
            if torch.cuda.is_current_stream_capturing():  # too late for a new table
                return False
            self._fused = FusedDescent(self.adam, self.parts, self.limit)
        return True
