"""The losses of Rainbow, of soft actor-critic and of the baselines as pure functions of tensors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels

if kernels.AVAILABLE:
    from playvirtual.kernels.triton import categorical_triton


def project_distribution(returns: Tensor, discounts: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """C51's projection Φ: the distribution of R + discount·Z, projected onto the support of Z.

    returns (B,), discounts (B,), probabilities (B, atoms), support (atoms,) evenly spaced. Returns (B, atoms).
    """
    low, high = support[0], support[-1]
    delta = (high - low) / (len(support) - 1)
    moved = (returns[:, None] + discounts[:, None] * support).clamp(low, high)  # (B, atoms′): T z_j
    # Each moved atom shares its mass between its two neighbors on the support.
    share = (1.0 - (moved[:, None, :] - support[:, None]).abs() / delta).clamp(0.0, 1.0)  # (B, atoms, atoms′)
    return (share * probabilities[:, None, :]).sum(2)  # not a matrix product: those may run in low precision


class CategoricalLoss(NamedTuple):
    """What C51 learns from a batch, and how much there is to learn from each sample of it."""

    loss: Tensor  # (B,) cross-entropy between target and prediction
    priority: Tensor  # (B,) their KL divergence, detached


def categorical_loss(log_probabilities: Tensor, target: Tensor) -> CategoricalLoss:
    """log_probabilities (B, atoms) of the action taken, target (B, atoms) without gradient."""
    loss = -(target * log_probabilities).sum(1)
    clamped = target.clamp(1e-6, 1.0)
    kl = (clamped * (clamped.log() - log_probabilities.detach())).sum(1)
    return CategoricalLoss(loss, kl.clamp(1e-6, 1e6))


class QLearning(NamedTuple):
    """What Q-learning of a categorical distribution learns from a batch, (B,) each; the loss alone has a gradient."""

    loss: Tensor  # cross-entropy between the target and the prediction for the action taken
    priority: Tensor  # their KL divergence
    q: Tensor  # the largest expected return of an action at s_t


def expected_values(logits: Tensor, support: Tensor) -> Tensor:
    """(…, atoms) -> (…): the expectations of categorical distributions over the support (atoms,)."""
    return (logits.softmax(-1) * support).sum(-1)  # not a matrix product: those may run in low precision


def select(values: Tensor, actions: Tensor) -> Tensor:
    """(B, |A|, X) values and (B,) actions -> (B, X): the row of the action taken."""
    return values.gather(1, actions[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]


def categorical_q_learning(
    logits: Tensor,
    choosing: Tensor,
    valuing: Tensor,
    actions: Tensor,
    returns: Tensor,
    discounts: Tensor,
    support: Tensor,
) -> QLearning:
    """C51 from logits (B, |A|, atoms) of s_t and, twice, of s_{t+n}: `choosing` chooses an action, `valuing` values it.

    In double Q-learning the online network chooses and the target network values. The action taken, return and
    discount (B,) each, support (atoms,) evenly spaced.
    """
    choosing, valuing = choosing.detach(), valuing.detach()
    if kernels.in_use() and logits.is_cuda and logits.dtype == torch.float32:
        return QLearning(
            *categorical_triton.q_learning(logits, choosing, valuing, actions, returns, discounts, support)
        )
    best = expected_values(choosing, support).argmax(1)  # (B,)
    target = project_distribution(returns, discounts, select(valuing.softmax(-1), best), support)
    learned = categorical_loss(select(logits, actions).log_softmax(-1), target)
    return QLearning(learned.loss, learned.priority, expected_values(logits.detach(), support).amax(1))


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


def info_nce(similarities: Tensor) -> Tensor:
    """−log softmax of the own key: similarities (B, B) of every query with every key, own ones on the diagonal. (B,)"""
    return -similarities.log_softmax(1).diagonal()


def quantize(pixels: Tensor, dither: Tensor) -> Tensor:
    """(N, C, H, W) uint8 -> floats in [−0.5, 0.5): 5 of the 8 bits, and noise in [0, 1) for what they leave out."""
    return ((pixels.to(dither.dtype) / 8.0).floor() + dither) / 32.0 - 0.5


def reconstruction_loss(reconstruction: Tensor, images: Tensor) -> Tensor:
    """The mean squared error over all pixels of an image, (B, C, H, W) both. Returns (B,)."""
    return (reconstruction - images).square().flatten(1).mean(1)


def latent_penalty(z: Tensor) -> Tensor:
    """½‖z‖² of latent states (B, D). Returns (B,)."""
    return 0.5 * z.square().sum(1)


def mean_and_range(q: Tensor) -> dict[str, Tensor]:
    """Mean, smallest and largest of a batch (B,) of Q values, as agents log them."""
    low, high = q.aminmax()
    return {"q": q.mean(), "q_min": low, "q_max": high}
