"""One step of the convolutional dynamics in plain PyTorch, and rollouts of many steps by the fused kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels

if kernels.AVAILABLE:
    from playvirtual.kernels.hopper import rollout_hopper
    from playvirtual.kernels.triton import rollout_triton


def rescale(z: Tensor, eps: float = 1e-6) -> Tensor:
    """Min-max rescales every sample to [0, 1]; a constant sample becomes 0 instead of NaN."""
    dims = tuple(range(1, z.dim()))
    low, high = z.amin(dims, keepdim=True), z.amax(dims, keepdim=True)
    return (z - low) / (high - low).clamp_min(eps)


def step(
    z: Tensor,  # (N, C, H, W)
    action_map: Tensor,  # (N, C, H, W): what the action adds to the first convolution
    w1: Tensor,  # (C, C, 3, 3)
    batch_norm: Callable[[Tensor], Tensor],
    w2: Tensor,  # (C, C, 3, 3)
    b2: Tensor | None,  # (C,)
) -> Tensor:
    """The twin that the kernels are held to: conv, action, ReLU, BatchNorm, conv, ReLU, rescaling to [0, 1]."""
    x = F.conv2d(z, w1, padding=1) + action_map
    x = batch_norm(F.relu(x))
    return rescale(F.relu(F.conv2d(x, w2, b2, padding=1)))


def fused(
    z: Tensor,
    actions: Tensor,
    maps: Tensor,
    w1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    num_kept: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """K steps from z (N, C, H, W) along actions (N, K); maps (|A|, H·W·C), gamma and beta of BatchNorm (C,).

    By one launch each way where `rollout_hopper.usable`, else by Triton. Maps are what constant planes add: the same
    at all positions but those of the first and last row and column.

    The first `num_kept` samples and the others are two batches, each with its own BatchNorm statistics. Returns all
    states of the first batch (K, num_kept, C, H, W), the last ones of the second (N − num_kept, C, H, W), and each
    step's sums of x and x² before BatchNorm (K, 2 batches, 2, C).
    """
    height, width = z.shape[2:]
    flat = z.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
    if kernels.persistent_wanted() and rollout_hopper.usable(z.device, z.dtype, tuple(z.shape), len(maps)):
        found = rollout_hopper.rollout(flat, actions, maps, w1, gamma, beta, w2, b2, num_kept)
        sums = rollout_hopper.sums_of(found[5], actions.shape[1])
        return _as_maps(found[0], height, width), _as_maps(found[1], height, width), sums
    found = rollout_triton.rollout(flat, actions, maps.contiguous(), w1, gamma, beta, w2, b2, num_kept, height, width)
    return _as_maps(found[0], height, width), _as_maps(found[1], height, width), found[5]


def _as_maps(x: Tensor, height: int, width: int) -> Tensor:
    """(…, H·W, C) as (…, C, H, W)."""
    maps: Tensor = x.unflatten(-2, (height, width)).movedim(-1, -3)
    return maps
