"""Optimizers."""

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


def load_adam(adam: torch.optim.Adam, state: Mapping[str, Any]) -> None:
    """Loads another Adam's `state_dict`, except for `capturable`, which depends on the device."""
    own = [group["capturable"] for group in adam.param_groups]
    adam.load_state_dict(dict(state))
    for group, capturable in zip(adam.param_groups, own, strict=True):
        group["capturable"] = capturable
