"""Target networks: copies that follow their online twins."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def target_of(online: M) -> M:
    """A copy without gradients."""
    return copy.deepcopy(online).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target ← τ·target + (1 − τ)·online for every parameter; buffers (noise, statistics) are copied."""
    theirs: list[Tensor] = list(target.parameters())
    ours: list[Tensor] = list(online.parameters())
    if tau == 0.0:
        torch._foreach_copy_(theirs, ours)
    else:
        torch._foreach_lerp_(theirs, ours, 1.0 - tau)
    buffers = list(target.buffers())
    if buffers:
        torch._foreach_copy_(buffers, list(online.buffers()))
