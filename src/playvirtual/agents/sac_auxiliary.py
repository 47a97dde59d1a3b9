"""The continuous agent's auxiliary objective: prediction of states and cycles over virtual trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.sac_networks import Encoder
from playvirtual.agents.targets import follow, target_of
from playvirtual.config import ObjectiveConfig, SacConfig, copies
from playvirtual.method import (
    DISTANCES,
    BoxActions,
    DenseDynamics,
    ProjectionHead,
    VirtualTrajectories,
    cosine_distance,
    endpoint,
    prediction_loss,
    rollout,
)
from playvirtual.replay import Crop
from playvirtual.replay.transitions import Windows

ImageDraws = tuple[Tensor, Tensor]  # offsets (N, 2), intensity noise (N,)


class AuxiliaryDraws(NamedTuple):
    """The random numbers of one auxiliary update."""

    online: ImageDraws  # for s_t through the online encoder, (B,)
    target: ImageDraws  # for everything the momentum encoder sees, (B·K + B·views,)
    virtual: Tensor  # (B, M, K, A) virtual actions


class Auxiliary:
    """h, b, g, q and the momentum networks f_m, g_m beside the critic's encoder f; needs K > 0."""

    def __init__(
        self,
        config: SacConfig,
        objective: ObjectiveConfig,
        encoder: Encoder,
        actions: BoxActions,
        augment: Crop,
        device: torch.device,
    ) -> None:
        c = config
        self.objective, self.K, self.momentum_tau = objective, objective.K, c.momentum_tau
        self.M = copies(objective.M, actions.size)
        self.views = self.M + objective.real_cycle  # augmented views of s_t to come back to
        self.augment = replace(augment, scale=c.intensity_scale)  # crops and, other than RL's, random intensity
        self.dm = DenseDynamics(c.latent, actions, c.dynamics_hidden)
        self.projector = ProjectionHead(c.latent, c.projection_hidden)
        self.predictor = ProjectionHead(c.latent, c.projection_hidden)
        self.target_encoder = target_of(encoder)
        independent = c.target_projection == "independent"
        self.target_projector = target_of(
            ProjectionHead(c.latent, c.projection_hidden) if independent else self.projector
        )
        self.bdm = DenseDynamics(c.latent, actions, c.dynamics_hidden) if self.views else None
        self.online = nn.ModuleDict({"dm": self.dm, "projector": self.projector, "predictor": self.predictor})
        if self.bdm is not None:
            self.online["bdm"] = self.bdm
        self.momentum = nn.ModuleDict({"encoder": self.target_encoder, "projector": self.target_projector})
        self.online.to(device)
        self.momentum.to(device)
        self.virtual = self._virtual_trajectories(actions) if self.bdm is not None else None

    def _virtual_trajectories(self, actions: BoxActions) -> VirtualTrajectories:
        o = self.objective
        projected = o.metric == "projection"
        assert self.bdm is not None
        return VirtualTrajectories(
            forward=self.dm,
            backward=self.bdm,
            actions=actions,
            horizon=self.K,
            copies=self.M,
            projector=self.projector if projected else None,
            predictor=self.predictor if projected else None,
            target_projector=self.target_projector if projected else None,
            distance=cosine_distance if projected else DISTANCES[o.latent_distance],
            constraint=o.constraint,
            sampling=o.virtual_actions,
            sigma=o.sigma,
            update_forward=o.cycle_updates_dm,
        )

    def draw(self, windows: Windows, generator: torch.Generator | None = None) -> AuxiliaryDraws:
        """All random numbers of one update."""
        B, device = len(windows.actions), windows.actions.device
        parts = [B, B * (self.K + self.views)]
        offsets, noise = self.augment.draw(sum(parts), device, generator)
        online, target = zip(offsets.split(parts), noise.split(parts), strict=True)
        virtual = windows.actions.new_zeros((B, 0, self.K, windows.actions.shape[-1]))
        if self.virtual is not None and self.M:
            virtual = self.virtual.draw(windows.actions, windows.actions, generator)
        return AuxiliaryDraws(online, target, virtual)

    def losses(self, encoder: Encoder, windows: Windows, draws: AuxiliaryDraws) -> dict[str, Tensor]:
        """Per-sample losses (B,) named like their weights: pred (Eq. 2) and cyc (Eq. 4)."""
        B, K = len(windows.actions), self.K
        z = encoder(self.augment(windows.observations[:, 0], draws.online))  # (B, D): z_t
        future, z_tilde = self._target_latents(windows, draws)
        ahead = None
        if self.virtual is None:
            z_hat = rollout(self.dm, z, windows.actions)  # (B, K, D): Eq. 1
        else:
            z_hat, ahead = self.virtual.foresee(z, windows.actions, draws.virtual)
        with torch.no_grad():
            target = self.target_projector(future).unflatten(0, (B, K))
        prediction = self.predictor(self.projector(z_hat))
        pred = prediction_loss(prediction, target, cosine_distance) * windows.valid
        if self.virtual is None:
            return {"pred": pred, "cyc": torch.zeros_like(pred)}
        return {"pred": pred, "cyc": self._cycle_loss(z, z_hat, ahead, z_tilde, windows, draws) * windows.valid}

    @torch.no_grad()
    def _target_latents(self, windows: Windows, draws: AuxiliaryDraws) -> tuple[Tensor, Tensor]:
        """One pass of the momentum encoder over s_{t+1} … s_{t+K} (B·K) and the views of s_t (B·views)."""
        B, steps = windows.observations.shape[:2]
        number = torch.arange(B * steps, device=windows.observations.device).view(B, steps)
        source = torch.cat([number[:, 1:].flatten(), number[:, 0].repeat_interleave(self.views)])
        images = self.augment(windows.observations.flatten(0, 1), draws.target, source)
        future, z_tilde = self.target_encoder(images).split([B * self.K, B * self.views])
        return future, z_tilde

    def _cycle_loss(
        self, z: Tensor, z_hat: Tensor, ahead: Tensor | None, z_tilde: Tensor, windows: Windows, draws: AuxiliaryDraws
    ) -> Tensor:
        """Eq. 4 over the virtual trajectories and, if asked for, along the recorded actions. Returns (B,)."""
        assert self.virtual is not None
        assert self.bdm is not None
        with torch.no_grad():
            target = self.target_projector(z_tilde) if self.objective.metric == "projection" else z_tilde
            target = target.unflatten(0, (len(z), self.views))  # (B, views, D)
        loss = self.virtual.loss(z, target[:, : self.M], draws.virtual, ahead)
        if self.objective.real_cycle:
            z_cycle = endpoint(self.bdm, z_hat[:, -1], windows.actions.flip(1))  # (B, D): z′_t
            loss = loss + self.virtual.d(self.virtual.project(z_cycle), target[:, -1])
        return loss

    def update_momentum(self, encoder: Encoder) -> None:
        """Lets f_m and g_m follow f and g."""
        follow(self.target_encoder, encoder, 1.0 - self.momentum_tau)
        follow(self.target_projector, self.projector, 1.0 - self.momentum_tau)
