"""The one auxiliary objective of every agent: SPR's prediction of states and PlayVirtual's cycles beside an encoder."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from playvirtual import kernels
from playvirtual.method.dynamics import Dynamics, Step, as_dynamics
from playvirtual.method.projection import cosine_distance, spread
from playvirtual.method.samplers import PolicyFunction
from playvirtual.method.virtual import Features, VirtualTrajectories, prediction_loss

Randoms = Any  # the random numbers that an augmentation draws for N images; `split(sizes)` divides them


class Augmentation(Protocol):
    """A random view of images as a pure function of random numbers that are drawn beforehand."""

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> Randoms:
        """The random numbers of `count` views."""
        ...

    def __call__(self, images: Tensor, randoms: Randoms, source: Tensor | None = None) -> Tensor:
        """(N, C, H, W) uint8 -> (V, C, H′, W′) floats; view v is made of images[source[v]], or of image v."""
        ...


def encode_views(
    encoder: Features, augment: Augmentation, images: Tensor, randoms: Randoms, source: Tensor | None = None
) -> Tensor:
    """f of augmented views of images; an encoder with a method of this name makes the views in its own way."""
    own = getattr(encoder, "encode_views", None)
    z: Tensor = encoder(augment(images, randoms, source)) if own is None else own(augment, images, randoms, source)
    return z


class RandomInputs(NamedTuple):
    """All random numbers of one evaluation of the objective, so that its losses are a pure function of them.

    Those for the target encoder come in the order of its images: the R of the RL loss, s_{t+1} … s_{t+K} of each sample
    (from s_t on with backward prediction), and the views of s_t that cycles come back to.
    """

    online: Randoms  # (B,) for s_t through the online encoder
    rl: Randoms  # for images of the RL loss that the online encoder sees, if the agent asked for some
    target: Randoms  # (R + B·(K + views),) for the target encoder; with backward prediction B more
    virtual: Tensor | None  # (B, M, K, …a) virtual actions; None where the sampler sees the state and draws later
    generator: torch.Generator | None = None  # that it draws from then
    last: Randoms | None = None  # (B,) for s_{t+K} through the online encoder, where backward prediction starts


class Targets(NamedTuple):
    """What the target network makes of a batch, without gradient."""

    rl: Tensor  # (R, …): z̃ of the RL loss' images
    future: Tensor  # (B, K, D): g_m(z̃) of s_{t+1} … s_{t+K}
    cycle: Tensor  # (B, views, D): of augmented views of s_t, in the metric space in which cycles close
    past: Tensor | None = None  # (B, K, D): g_m(z̃) of s_t … s_{t+K−1}; with backward prediction alone

    def spread(self) -> Tensor:
        """How far apart the targets of s_{t+1} in a batch lie, (); near 0 the representation has collapsed."""
        return spread(self.future[:, 0])


def _mixes_samples(head: Features | None) -> bool:
    """Whether what a head makes of a state depends on the others in the batch, as with BatchNorm."""
    return isinstance(head, nn.Module) and any(isinstance(part, _BatchNorm) for part in head.modules())


class SelfPrediction(nn.Module):
    """SPR's prediction loss and PlayVirtual's cycle loss beside any agent that has an encoder.

    aux = SelfPrediction(encoder=f, target_encoder=f_m, augment=random_shift, forward=h, projector=g, predictor=q,
                         target_projector=g_m, K=9, virtual=VirtualTrajectories(forward=h, backward=b, …, K=9, M=12))
    losses = aux(observations, actions)                     # {"pred": (B,), "cyc": (B,), "target_spread": ()}
    total = aux.total(losses, aux.lambda_cyc(i), rl_loss)   # Eq. 5, per sample

    Without `virtual` it is SPR. With `real_cycle` the cycle loss is also taken along the recorded actions. With
    `backward_prediction` the backward model also predicts the recorded past s_{t+K−1} … s_t from f(s_{t+K}): a third
    loss, "backward_pred", of the weight of the forward one. K = 0 leaves no prediction at all, and all losses are 0.
    The encoders belong to the agent: `parameters()` are the models' and the heads' alone.
    """

    def __init__(
        self,
        *,
        encoder: Features,
        target_encoder: Features,
        augment: Augmentation,
        projector: Features,
        target_projector: Features,
        predictor: Features | None = None,
        forward: Step | None = None,
        K: int,
        virtual: VirtualTrajectories | None = None,
        real_cycle: bool = False,
        backward_prediction: bool = False,
        lambda_pred: float = 1.0,
        policy: PolicyFunction | None = None,
    ) -> None:
        super().__init__()
        if K and (forward is None or predictor is None):
            raise ValueError("forward, predictor: are needed for K > 0; allowed: a dynamics model and a head")
        if real_cycle and virtual is None:
            raise ValueError("real_cycle: needs `virtual`, whose backward model it uses; allowed: False")
        if backward_prediction and virtual is None:
            raise ValueError("backward_prediction: needs `virtual`, whose backward model it uses; allowed: False")
        if virtual is not None and (virtual.K != K or forward not in (virtual.h, getattr(virtual.h, "model", None))):
            raise ValueError("virtual: its K and its forward model are not these; allowed: the same ones")
        self._encoders = (encoder, target_encoder)  # a tuple, so that they are no parts of this module
        self.augment, self.policy = augment, policy
        self.h: Dynamics | None = None if forward is None else as_dynamics(forward)
        if virtual is not None:
            self.h = virtual.h
        self.g, self.q, self.g_m = projector, predictor, target_projector
        self.K, self.virtual, self.real_cycle, self.lambda_pred = K, virtual, real_cycle, lambda_pred
        self.M = virtual.M if virtual is not None else 0
        # Whether predictions and cycles go through the same heads, state by state, and of cycles the ends alone count.
        same_heads = virtual is not None and virtual.g is projector and virtual.q is predictor
        alone = not any(_mixes_samples(head) for head in (projector, predictor))
        self._heads_serve_both = virtual is not None and same_heads and alone and self.M > 0 and not virtual.every_step
        self.views = self.M + real_cycle  # augmented views of s_t per sample that cycles come back to
        self.backward_prediction = backward_prediction and K > 0
        self.loss_names = ("pred", "backward_pred", "cyc") if self.backward_prediction else ("pred", "cyc")

    def draw(
        self,
        actions: Tensor,
        generator: torch.Generator | None = None,
        *,
        num_rl: int = 0,
        num_rl_target: int = 0,
    ) -> RandomInputs:
        """All random numbers for a batch with the recorded actions (B, K, …a).

        The same call draws those of `num_rl` images of the agent's RL loss, and of `num_rl_target` images that its RL
        loss shows to the target encoder.
        """
        B, device = len(actions), actions.device
        extra = B * self.backward_prediction
        parts = [B, num_rl, num_rl_target + B * (self.K + self.views) + extra, extra]
        online, rl, target, last = self.augment.draw(sum(parts), device, generator).split(parts)
        virtual: Tensor | None = actions.new_zeros((B, 0, self.K, *actions.shape[2:]))
        if self.virtual is not None and self.M:
            sees_state = self.virtual.sampler.sees_state
            virtual = None if sees_state else self.virtual.draw(B, device, generator, recorded=actions)
        return RandomInputs(online, rl, target, virtual, generator if virtual is None else None, last)

    def encode(self, observations: Tensor, inputs: RandomInputs) -> Tensor:
        """z_t = f(s_t) of augmented views, (B, …); observations (B, K+1, C, H, W) uint8."""
        return self._encoders[0](self.augment(observations[:, 0], inputs.online))

    def encode_last(self, observations: Tensor, inputs: RandomInputs) -> Tensor | None:
        """z_{t+K} = f(s_{t+K}) of augmented views, (B, …), where backward prediction starts; None without it."""
        if not self.backward_prediction:
            return None
        return self._encoders[0](self.augment(observations[:, self.K], inputs.last))

    @torch.no_grad()
    def targets(
        self,
        observations: Tensor,
        inputs: RandomInputs,
        rl_images: Tensor | None = None,
        images: Tensor | None = None,
    ) -> Targets:
        """One pass of the target encoder and of its projection over s_t … s_{t+K} and the RL loss' images (R, …).

        `images` (B·(K+1) + R, …) are all of these in one tensor, if the caller has them so; else they are concatenated.
        """
        B, steps = observations.shape[:2]
        R = 0 if rl_images is None else len(rl_images)
        if images is not None and len(images) != B * steps + R:
            raise ValueError(f"images: {len(images)} are not allowed; allowed: {B * steps + R}, B·(K + 1) and R")
        # The place of each view's image among s_t … s_{t+K} of every sequence, then the RL loss'.
        place = torch.arange(B * steps + R, device=observations.device)
        sequences, rl = place[: B * steps].view(B, steps), place[B * steps :]
        first = 0 if self.backward_prediction else 1  # backward prediction ends in s_t, forward starts after it
        recorded, now = sequences[:, first : self.K + 1].flatten(), sequences[:, 0].repeat_interleave(self.views)
        source = torch.cat([rl, recorded, now])
        if images is None:
            recorded_images = observations.flatten(0, 1)
            images = recorded_images if rl_images is None else torch.cat([recorded_images, rl_images])
        z_tilde = encode_views(self._encoders[1], self.augment, images, inputs.target, source)
        states = self.K + 1 - first
        z_rl, recorded_z, cycle = z_tilde.split([R, B * states, B * self.views])
        if not self.K:
            return Targets(z_rl, recorded_z, cycle)
        if self.virtual is None or self.virtual.g is not None:  # one product for both
            projected, cycle = self.g_m(z_tilde[R:]).split([B * states, B * self.views])
        else:
            projected, cycle = self.g_m(recorded_z), cycle.flatten(1)
        projected, cycle = projected.unflatten(0, (B, states)), cycle.unflatten(0, (B, self.views))
        past = projected[:, : self.K] if self.backward_prediction else None
        return Targets(z_rl, projected[:, -self.K :], cycle, past)

    def losses(
        self,
        z: Tensor,
        targets: Targets,
        actions: Tensor,
        inputs: RandomInputs,
        mask: Tensor | None = None,
        z_last: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """L_pred (Eq. 2) and L_cyc (Eq. 4) per sample, (B,) each, and backward prediction's loss where it is on.

        z (B, …), recorded actions (B, K, …a), mask (B, K+1): 0 where a state lies beyond the end of the episode.
        `z_last` is what `encode_last` gave.
        """
        B = len(z)
        pred = cyc = torch.zeros(B, device=z.device)
        if not self.K:
            return {"pred": pred, "cyc": cyc}
        assert self.h is not None
        virtual, z_hat_virtual = self._virtual_actions(z, actions, inputs), None
        if self.virtual is None:
            z_hat = self.h.rollout(z, actions)  # (B, K, …): Eq. 1
        else:
            z_hat, z_hat_virtual = self.virtual.rollout(z, actions, virtual)
        joined = kernels.saves_launches(z) and self._heads_serve_both  # one product for both losses
        ends = self.virtual.ends(z, virtual, z_hat_virtual) if self.virtual is not None and joined else None
        prediction, end = self._projected(z_hat, ends)
        pred = prediction_loss(prediction, targets.future, cosine_distance, None if mask is None else mask[:, 1:])
        if self.virtual is not None:
            cycle_targets = targets.cycle[:, : self.M]
            if joined:
                cyc = self.virtual.closing_loss(end.unflatten(0, (B, self.M)), cycle_targets)
            else:
                cyc = self.virtual.loss(z, cycle_targets, virtual, z_hat_virtual)
            if self.real_cycle:
                reuse = self.virtual.train_forward and not self.virtual.every_step
                z_hat_K = z_hat[:, -1:] if reuse else None
                cyc = cyc + self.virtual.loss(z, targets.cycle[:, self.M], actions[:, None], z_hat_K)
            cyc = cyc if mask is None else cyc * mask[:, 0]
        if not self.backward_prediction:
            return {"pred": pred, "cyc": cyc}
        return {"pred": pred, "backward_pred": self._backward_loss(z_last, targets, actions, mask), "cyc": cyc}

    def _projected(self, z_hat: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """q(g(·)) of predicted states (B, K, …) and of other states (N, …) together: (B, K, D) and (N, D)."""
        assert self.q is not None
        steps = z_hat.transpose(0, 1)  # (K, B, …): as rollouts write them, so that alone they are not copied
        states = steps.flatten(0, 1)
        projected = self.q(self.g(states if others is None else torch.cat([states, others])))
        prediction, rest = projected[: len(states)], projected[len(states) :]
        return prediction.unflatten(0, steps.shape[:2]).transpose(0, 1), rest

    def _backward_loss(
        self, z_last: Tensor | None, targets: Targets, actions: Tensor, mask: Tensor | None
    ) -> Tensor:  # fmt: skip
        """Σ_{k=0}^{K−1} d(z′_{t+k}, z̃_{t+k}) with z′_{t+K} = f(s_{t+K}), z′_{t+k} = b(z′_{t+k+1}, a_{t+k}). (B,)

        It counts where all of s_t … s_{t+K} are in the episode, since it starts in the last of them.
        """
        assert self.virtual is not None and z_last is not None and targets.past is not None  # noqa: PT018
        z_back = self.virtual.b.rollout(z_last, actions.flip(1)).flip(1)  # (B, K, …): z′_t … z′_{t+K−1}
        prediction, _ = self._projected(z_back)
        return prediction_loss(prediction, targets.past, cosine_distance, None if mask is None else mask[:, -1:])

    def _virtual_actions(self, z: Tensor, actions: Tensor, inputs: RandomInputs) -> Tensor:
        """(B, M, K, …a), drawn before or, by a sampler that sees the state, now."""
        if inputs.virtual is not None:
            return inputs.virtual
        assert self.virtual is not None
        return self.virtual.draw(
            len(z), z.device, inputs.generator, recorded=actions, z=z.detach(), policy=self.policy
        )  # fmt: skip

    def lambda_cyc(self, step: Tensor | float) -> Tensor:
        """The weight of the cycle loss at `step`; 0 without virtual trajectories."""
        return torch.zeros(()) if self.virtual is None else self.virtual.lambda_cyc(step)

    def total(self, losses: dict[str, Tensor], lambda_cyc: float | Tensor, rl: Tensor | None = None) -> Tensor:
        """Eq. 5: L_total = L_rl + λ_pred · L_pred + λ_cyc · L_cyc; without `rl` the auxiliary part alone.

        The loss of backward prediction, where it is on, has the weight of the forward one.
        """
        pred = self.lambda_pred * losses["pred"]
        if self.backward_prediction:
            pred = pred + self.lambda_pred * losses["backward_pred"]
        return (pred if rl is None else rl + pred) + lambda_cyc * losses["cyc"]

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        inputs: RandomInputs | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """The losses of sequences: observations (B, K+1, C, H, W) uint8, actions (B, K, …a), mask (B, K+1).

        With K > 0 beside them "target_spread", (), is that of the targets.
        """
        shape = (len(actions), self.K + 1)
        for name, tensor in (("observations", observations), ("mask", mask)):
            if tensor is not None and tensor.shape[:2] != shape:
                raise ValueError(f"{name}: {tuple(tensor.shape)} is not allowed; allowed: {shape}, K + 1 states each")
        given = self.draw(actions, generator) if inputs is None else inputs
        z, z_last = self.encode(observations, given), self.encode_last(observations, given)
        targets = self.targets(observations, given)
        losses = self.losses(z, targets, actions, given, mask, z_last)
        return {**losses, "target_spread": targets.spread()} if self.K else losses
