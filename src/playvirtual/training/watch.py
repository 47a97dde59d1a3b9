"""Keeping an eye on the losses without waiting for the device: which one left the numbers first, when, on what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class NonFinite(NamedTuple):
    """The first update with a loss that is infinite or no number."""

    losses: list[str]
    update: int  # counted from 1
    positions: dict[str, list[int]]  # the batch's places in the replay, by kind


class Watch:
    """Remembers, on the device, the newest update's losses and batch, and stops at the first that is not finite.

    `see` belongs to the captured update: static shapes, no waiting, in-place writes. Each phase of the updates
    has its own losses and so its own memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._fine = torch.ones((), dtype=torch.bool, device=device)  # all updates so far
        self._count = torch.zeros((), dtype=torch.int64, device=device)  # updates up to the first bad one
        self._names: dict[int, list[str]] = {}
        self._losses: dict[int, Tensor] = {}  # phase → (losses,)
        self._positions: dict[int, dict[str, Tensor]] = {}

    def see(self, phase: int, metrics: Mapping[str, Tensor], positions: Mapping[str, Tensor]) -> None:
        """Takes note of one update."""
        names = [name for name in metrics if name.startswith("loss")]
        losses = torch.stack([metrics[name].float() for name in names])
        if phase not in self._names:
            self._names[phase] = names
            self._losses[phase] = torch.zeros_like(losses)
            self._positions[phase] = {kind: torch.zeros_like(index) for kind, index in positions.items()}
        kept = self._losses[phase]
        torch.where(self._fine, losses, kept, out=kept)
        for kind, index in positions.items():
            kept = self._positions[phase][kind]
            torch.where(self._fine, index, kept, out=kept)
        self._count.add_(self._fine)
        self._fine.logical_and_(torch.isfinite(losses).all())

    def found(self) -> NonFinite | None:
        """The first bad update, if there was any; waits for the device."""
        if bool(self._fine):
            return None
        bad = {phase: (~torch.isfinite(losses)).tolist() for phase, losses in self._losses.items()}
        (phase,) = (phase for phase, flags in bad.items() if any(flags))
        losses = [name for name, flag in zip(self._names[phase], bad[phase], strict=True) if flag]
        return NonFinite(losses, int(self._count), {k: v.tolist() for k, v in self._positions[phase].items()})

    def state_dict(self) -> dict[str, Any]:
        """How many updates were seen: a checkpoint is only made of a run without a bad one."""
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, in place."""
        self._count.copy_(state["count"])
