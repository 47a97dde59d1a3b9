"""Limiting the norms of gradients, network part by network part, with one pass over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def clip_by_part(parts: Mapping[str, Sequence[nn.Parameter]], limit: float) -> dict[str, Tensor]:
    """Scales every part's gradients down to a norm of at most `limit`, which may be ∞; returns the norms they had."""
    gradients = {name: [p.grad for p in parameters if p.grad is not None] for name, parameters in parts.items()}
    sizes = [len(part) for part in gradients.values()]
    squares = torch.stack(torch._foreach_norm([g for part in gradients.values() for g in part])).square()
    norms = torch.stack([part.sum() for part in squares.split(sizes)]).sqrt()  # (parts,)
    if limit < math.inf:
        factors = (limit / (norms + 1e-6)).clamp_max(1.0)
        for part, factor in zip(gradients.values(), factors.unbind(), strict=True):
            if part:
                torch._foreach_mul_(part, factor)
    return dict(zip(gradients, norms.unbind(), strict=True))
