"""Optimizers and target networks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def make_adam(
    parameters: Sequence[nn.Parameter],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    device: torch.device,
    weight_decay: float = 0.0,
) -> torch.optim.Adam:
    """An Adam whose steps can be captured in a CUDA graph; `weight_decay` times a weight is added to its gradient."""
    cuda = device.type == "cuda"
    return torch.optim.Adam(
        parameters, lr=lr, betas=betas, eps=eps, fused=True, capturable=cuda, weight_decay=weight_decay
    )


def load_adam(adam: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Loads another Adam's `state_dict`, except for `capturable`, which depends on the device."""
    own = [group["capturable"] for group in adam.param_groups]
    adam.load_state_dict(dict(state))
    for group, capturable in zip(adam.param_groups, own, strict=True):
        group["capturable"] = capturable


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
