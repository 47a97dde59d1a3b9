"""The losses of soft actor-critic as pure functions of tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(μ + σ·ε) and log π(a); mean, log_std and normal noise (B, A). Returns (B, A), (B,)."""
    action = torch.tanh(mean + log_std.exp() * noise)
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)  # (B, A)
    # The change of variables, log(1 − a²); the small number keeps it finite where tanh has rounded to ±1.
    squash = torch.log(F.relu(1.0 - action.square()) + 1e-6)
    return action, (gaussian - squash).sum(1)


def soft_target(rewards: Tensor, discounts: Tensor, q1: Tensor, q2: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """r + discount · (min(Q₁, Q₂) − α log π) at the next state, all (B,) but α ()."""
    return rewards + discounts * (torch.minimum(q1, q2) - alpha * log_prob)


def critic_loss(q1: Tensor, q2: Tensor, target: Tensor) -> Tensor:
    """(Q₁ − y)² + (Q₂ − y)², all (B,), the target without gradient."""
    return (q1 - target).square() + (q2 - target).square()


def actor_loss(q1: Tensor, q2: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """α log π − min(Q₁, Q₂), all (B,) but α () without gradient."""
    return alpha * log_prob - torch.minimum(q1, q2)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """α · (−log π − target entropy), log_prob (B,) without gradient: α falls while entropy is ample."""
    return log_alpha.exp() * (-log_prob - target_entropy)
