"""What the parameters of the dynamics get from a rollout: products over all steps together."""

from __future__ import annotations

import torch
from torch import Tensor


def parameter_gradients(
    actions: Tensor,  # (N, K)
    maps: Tensor,  # (|A|, P·C)
    w1: Tensor,
    w2: Tensor,
    states: Tensor,  # (K, N, P, C): what the first convolution was given
    y: Tensor,  # (K, N, P, C): what the second was
    dx: Tensor,  # (K, N, P, C): dL/d outputs of the first
    du: Tensor,  # (K, N, P, C): of the second
    dsums: Tensor,  # (K, 2 batches, 3, C): sums of dL/dy, of it times x̂, and of du
    height: int,
    width: int,
) -> tuple[Tensor, ...]:
    """Gradients of maps, w1, gamma, beta, w2 and b2."""
    number = torch.arange(maps.shape[0], device=maps.device)[:, None]
    chosen = (number == actions.t().reshape(1, -1)).to(dx.dtype)  # (|A|, K·N)
    dmaps = (chosen @ dx.flatten(0, 1).flatten(1)).to(maps.dtype)
    dbeta, dgamma, db2 = dsums.sum((0, 1))
    dw1 = _weight_gradient(states, dx, w1, height, width)
    dw2 = _weight_gradient(y, du, w2, height, width)
    return dmaps, dw1, dgamma, dbeta, dw2, db2


def _weight_gradient(inputs: Tensor, gradient: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """One product over all steps: (K, N, P, C) inputs and output gradients -> a gradient like `weight`."""
    images = [
        t.reshape(-1, height, width, t.shape[-1]).permute(0, 3, 1, 2) for t in (gradient, inputs)
    ]  # channels last
    mask = [False, True, False]
    ones, none = [1, 1], [0, 0]
    like = weight.detach().to(inputs.dtype)
    found = torch.ops.aten.convolution_backward(*images, like, None, ones, ones, ones, False, none, 1, mask)
    result: Tensor = found[1].float()
    return result
