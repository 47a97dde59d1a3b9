"""The continuous agent's auxiliary objective: prediction of states and cycles over virtual trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.cycles import cycle_loss, virtual_trajectories
from playvirtual.agents.sac_networks import Encoder
from playvirtual.agents.targets import follow, target_of
from playvirtual.config import ObjectiveConfig, SacConfig, copies
from playvirtual.method import (
    BoxActions,
    DenseDynamics,
    ProjectionHead,
    cosine_distance,
    prediction_loss,
    rollout,
)
from playvirtual.replay import Crop, ImageDraws
from playvirtual.replay.transitions import Windows


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
        self.virtual = None
        if self.bdm is not None:
            self.virtual = virtual_trajectories(
                objective,
                forward=self.dm,
                backward=self.bdm,
                actions=actions,
                copies=self.M,
                projector=self.projector,
                predictor=self.predictor,
                target_projector=self.target_projector,
            )

    def draw(self, windows: Windows, generator: torch.Generator | None = None) -> AuxiliaryDraws:
        """All random numbers of one update."""
        B, device = len(windows.actions), windows.actions.device
        parts = [B, B * (self.K + self.views)]
        offsets, noise = self.augment.draw(sum(parts), device, generator)
        online, target = zip(offsets.split(parts), noise.split(parts), strict=True)
        virtual = windows.actions.new_zeros((B, 0, self.K, windows.actions.shape[-1]))
        if self.virtual is not None and self.M:
            virtual = self.virtual.draw(B, device, generator, windows.actions)
        return AuxiliaryDraws(online, target, virtual)

    def losses(self, encoder: Encoder, windows: Windows, draws: AuxiliaryDraws) -> dict[str, Tensor]:
        """Per-sample losses (B,) named like their weights: pred (Eq. 2) and cyc (Eq. 4)."""
        z = encoder(self.augment(windows.observations[:, 0], draws.online))  # (B, D): z_t
        future, home = self._targets(windows, draws)
        ahead = None
        if self.virtual is None:
            z_hat = rollout(self.dm, z, windows.actions)  # (B, K, D): Eq. 1
        else:
            z_hat, ahead = self.virtual.foresee(z, windows.actions, draws.virtual)
        prediction = self.predictor(self.projector(z_hat))
        pred = prediction_loss(prediction, future, cosine_distance) * windows.valid
        if self.virtual is None:
            return {"pred": pred, "cyc": torch.zeros_like(pred)}
        cyc = cycle_loss(self.virtual, z, home, draws.virtual, ahead, (windows.actions, z_hat))
        return {"pred": pred, "cyc": cyc * windows.valid}

    @torch.no_grad()
    def _targets(self, windows: Windows, draws: AuxiliaryDraws) -> tuple[Tensor, Tensor]:
        """What the momentum networks make of a window, by one pass of their encoder.

        g_m(z̃) of s_{t+1} … s_{t+K} (B, K, D); of the views of s_t, that cycles come back to, in their metric
        (B, views, D).
        """
        B, steps = windows.observations.shape[:2]
        number = torch.arange(B * steps, device=windows.observations.device).view(B, steps)
        source = torch.cat([number[:, 1:].flatten(), number[:, 0].repeat_interleave(self.views)])
        images = self.augment(windows.observations.flatten(0, 1), draws.target, source)
        future, home = self.target_encoder(images).split([B * self.K, B * self.views])
        if self.objective.metric == "projection":
            home = self.target_projector(home)
        return self.target_projector(future).unflatten(0, (B, self.K)), home.unflatten(0, (B, self.views))

    def update_momentum(self, encoder: Encoder) -> None:
        """Lets f_m and g_m follow f and g."""
        follow(self.target_encoder, encoder, 1.0 - self.momentum_tau)
        follow(self.target_projector, self.projector, 1.0 - self.momentum_tau)
