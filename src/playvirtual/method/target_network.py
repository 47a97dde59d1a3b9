"""Target networks: copies of a network that follow it without gradients."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def make_target(online: Module) -> Module:
    """A copy of the network without gradients."""
    return copy.deepcopy(online).requires_grad_(False)


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target ← (1 − τ)·target + τ·online for every parameter, a copy for τ = 1; buffers, such as noise, are copied."""
    targets: list[Tensor] = list(target.parameters())
    onlines: list[Tensor] = list(online.parameters())
    if tau == 1.0:
        torch._foreach_copy_(targets, onlines)
    else:
        torch._foreach_lerp_(targets, onlines, tau)
    copy_buffers(target, online)


@torch.no_grad()
def copy_buffers(target: nn.Module, online: nn.Module) -> None:
    """What a network has beside its parameters, such as noise."""
    buffers = list(target.buffers())
    if buffers:
        torch._foreach_copy_(buffers, list(online.buffers()))
