"""Adams whose steps a CUDA graph can capture: how they are made, and how their state is loaded in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


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


def make_adamw(
    parameters: Sequence[nn.Parameter],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    device: torch.device,
) -> torch.optim.Adam:
    """An AdamW whose steps can be captured in a CUDA graph; biases and other vectors do not decay."""
    decaying, others = [p for p in parameters if p.ndim != 1], [p for p in parameters if p.ndim == 1]
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    cuda = device.type == "cuda"
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True, capturable=cuda)


@torch.no_grad()
def load_adam(adam: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Loads another Adam's `state_dict`, except for `capturable`, which depends on the device.

    Moments and step counts that this Adam has are written in place, since a CUDA graph knows them by their addresses.
    """
    own = [group["capturable"] for group in adam.param_groups]
    kept = dict(adam.state)
    adam.load_state_dict(dict(state))
    for group, capturable in zip(adam.param_groups, own, strict=True):
        group["capturable"] = capturable
    for parameter, tensors in kept.items():
        loaded = adam.state[parameter]
        for name, tensor in tensors.items():
            if name in loaded:
                tensor.copy_(loaded[name])
            else:  # of an Adam before its first step
                tensor.zero_()
        adam.state[parameter] = tensors
