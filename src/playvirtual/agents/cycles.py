"""What both agents make of the method: cycles over virtual trajectories, along the recorded ones too if asked for."""

from __future__ import annotations

from torch import Tensor

from playvirtual.config import ObjectiveConfig
from playvirtual.method import DISTANCES, ActionSpace, VirtualTrajectories, cosine_distance
from playvirtual.method.virtual import Dynamics, Features


def virtual_trajectories(
    objective: ObjectiveConfig,
    *,
    forward: Dynamics,
    backward: Dynamics,
    actions: ActionSpace,
    copies: int,
    projector: Features,
    predictor: Features,
    target_projector: Features,
) -> VirtualTrajectories:
    """The method's module with an objective's settings; the projections go unused if its metric is the latent space."""
    o = objective
    projected = o.metric == "projection"
    return VirtualTrajectories(
        forward=forward,
        backward=backward,
        actions=actions,
        horizon=o.K,
        copies=copies,
        projector=projector if projected else None,
        predictor=predictor if projected else None,
        target_projector=target_projector if projected else None,
        distance=cosine_distance if projected else DISTANCES[o.latent_distance],
        constraint=o.constraint,
        sampling=o.virtual_actions,
        sigma=o.sigma,
        update_forward=o.cycle_updates_dm,
    )


def cycle_loss(
    virtual: VirtualTrajectories,
    z: Tensor,
    home: Tensor,
    drawn: Tensor,
    ahead: Tensor | None,
    recorded: tuple[Tensor, Tensor],
) -> Tensor:
    """Eq. 4 along the actions drawn (B, M, K, …a) plus, where `home` has one view more, along the recorded ones.

    `home` (B, M or M + 1, D) are the views of s_t to come back to; `ahead` is what `foresee` gave; `recorded` are the
    actions (B, K, …a) and what h has made of them, ẑ (B, K, …). Returns (B,).
    """
    M = drawn.shape[1]
    loss = virtual.loss(z, home[:, :M], drawn, ahead)
    if home.shape[1] > M:
        actions, z_hat = recorded
        end = z_hat[:, -1] if virtual.takes_endpoints else None
        loss = loss + virtual.loss(z, home[:, M], actions[:, None], end)
    return loss
