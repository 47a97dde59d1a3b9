"""The distributional Q-learning loss as pure functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


def project_distribution(returns: Tensor, discounts: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """C51's projection Φ: the distribution of R + discount·Z, brought back onto the support of Z.

    returns (B,), discounts (B,), probabilities (B, atoms), support (atoms,) evenly spaced. Returns (B, atoms).
    """
    low, high = support[0], support[-1]
    delta = (high - low) / (len(support) - 1)
    moved = (returns[:, None] + discounts[:, None] * support).clamp(low, high)  # (B, atoms′): T z_j
    # Each moved atom shares its mass between its two neighbours on the support.
    share = (1.0 - (moved[:, None, :] - support[:, None]).abs() / delta).clamp(0.0, 1.0)  # (B, atoms, atoms′)
    return (share * probabilities[:, None, :]).sum(2)  # not a matrix product: those may run in low precision


class CategoricalLoss(NamedTuple):
    loss: Tensor  # (B,) cross-entropy between target and prediction
    priority: Tensor  # (B,) their KL divergence, detached


def categorical_loss(log_probabilities: Tensor, target: Tensor) -> CategoricalLoss:
    """log_probabilities (B, atoms) of the action taken, target (B, atoms) without gradient."""
    loss = -(target * log_probabilities).sum(1)
    clamped = target.clamp(1e-6, 1.0)
    kl = (clamped * (clamped.log() - log_probabilities.detach())).sum(1)
    return CategoricalLoss(loss, kl.clamp(1e-6, 1e6))
