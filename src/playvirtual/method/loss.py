"""The whole objective for an agent of another library: it brings its encoder and sequences, all else is made here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from playvirtual.method.actions import ActionSpace, DiscreteActions, action_space
from playvirtual.method.dynamics import ConvDynamics, DenseDynamics, Dynamics, Step
from playvirtual.method.objective import SelfPrediction, Targets
from playvirtual.method.projection import ProjectionHead, spread
from playvirtual.method.samplers import Sampler, check_nonnegative, check_whole
from playvirtual.method.target_network import make_target, soft_update
from playvirtual.method.virtual import VirtualTrajectories

PROJECTION_SIZE = 256  # features of the metric space of feature maps
CALLS_BEFORE_WARNING = 1_000  # of the loss without `update_targets`


class PlayVirtualLoss(nn.Module):
    """λ_pred · L_pred + λ_cyc · L_cyc beside any encoder: the auxiliary part of the paper's Eq. 5.

    aux = PlayVirtualLoss(encoder, actions=env.action_space, latent=128, K=5, M=6)
    optimizer = Adam([*agent.parameters(), *aux.parameters()])
    loss = rl_loss + aux(observations, actions, mask, step=i).mean()
    …                                                    # loss.backward(), optimizer.step()
    aux.update_targets()                                 # after each step of the optimizer

    `encoder` maps observations (N, …) to states of the shape `latent`: a number of features, or (C, H, W). It stays the
    agent's and is no part of this module. Dynamics models, heads and the momentum encoder, which gives the targets of
    both losses, are made on the encoder's device. `forward` and `backward`, any models (z, a) -> z of the next step,
    and `projector` and `predictor` replace what is made: a projector to other than `latent` features (256 for feature
    maps) needs a predictor that fits it. `target_encoder` replaces the momentum encoder, and then the agent moves it.
    `augment` makes random views of observations (N, …), if there is one. `tau` is the share of the
    online networks that `update_targets` takes; `i_end` is the step at which λ_cyc reaches `lambda_cyc_max`.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        actions: Any,
        latent: int | tuple[int, int, int],
        K: int,
        M: int,
        augment: Callable[[Tensor], Tensor] | None = None,
        target_encoder: nn.Module | None = None,
        tau: float = 0.01,
        forward: Step | None = None,
        backward: Step | None = None,
        projector: nn.Module | None = None,
        predictor: nn.Module | None = None,
        sampler: Sampler | None = None,
        lambda_pred: float = 1.0,
        lambda_cyc_max: float = 1.0,
        i_end: int = 50_000,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise TypeError(f"encoder: {encoder!r} is not allowed; allowed: an nn.Module, which is copied for targets")
        check_whole("K", K, 1)
        if isinstance(tau, str) or not 0 <= tau <= 1:
            raise ValueError(f"tau: {tau!r} is not allowed; allowed: numbers from 0 to 1")
        check_nonnegative("lambda_pred", lambda_pred)
        shape, space = _latent_shape(latent), action_space(actions)
        h = _dynamics(shape, space) if forward is None else forward
        b = _dynamics(shape, space) if backward is None else backward
        g = _projector(shape) if projector is None else projector
        q = _predictor(shape) if predictor is None else predictor
        self._encoder = (encoder,)  # a tuple, so that it is no part of this module
        self._moves_target_encoder = target_encoder is None
        self.target_encoder = make_target(encoder) if target_encoder is None else target_encoder
        self.target_projector = make_target(g)
        self.tau, self.augmented, self.latent = tau, augment is not None, shape
        self._in_range = False  # whether actions were found within the bounds of their space, which is checked once
        self._calls_since_update = 0  # of the loss, since `update_targets`
        self.virtual = VirtualTrajectories(
            forward=h,
            backward=b,
            actions=space,
            K=K,
            M=M,
            projector=g,
            predictor=q,
            target_projector=self.target_projector,
            sampler=sampler,
            i_end=i_end,
            lambda_cyc_max=lambda_cyc_max,
        )
        self.objective = SelfPrediction(
            encoder=encoder,
            target_encoder=self.target_encoder,
            augment=_Views(augment),
            projector=g,
            target_projector=self.target_projector,
            predictor=q,
            forward=h,
            K=K,
            virtual=self.virtual,
            lambda_pred=lambda_pred,
        )
        device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
        self.to(device)

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        step: Tensor | float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """λ_pred · L_pred + λ_cyc(step) · L_cyc per sample, (B,); without `step` the full weight λ_cyc_max.

        observations (B, K+1, …) as the encoder takes them, actions (B, K) or (B, K, A); mask (B, K+1) is 0 where a
        state lies beyond the end of the episode. `sample_sequences` gives all three.
        """
        return self.total(self.losses(observations, actions, mask, generator=generator), step)

    def losses(
        self,
        observations: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """L_pred and L_cyc per sample, {"pred": (B,), "cyc": (B,)}: what `total` weighs, and what one logs."""
        for name, given in (("observations", observations), ("actions", actions), ("mask", mask)):
            if not isinstance(given, Tensor) and not (name == "mask" and given is None):
                raise TypeError(f"{name}: a {type(given).__name__} is not allowed; allowed: a tensor")
        recorded, actions = actions, self._checked_actions(observations, actions)
        if mask is not None and mask.shape != (len(actions), self.virtual.K + 1):
            raise ValueError(f"mask: {tuple(mask.shape)} is not allowed; allowed: {(len(actions), self.virtual.K + 1)}")
        if not torch.compiler.is_compiling():
            self._check_range(recorded)
            self._warn_if_targets_never_move()
        inputs = self.objective.draw(actions, generator)
        z = self.objective.encode(observations, inputs)
        if tuple(z.shape[1:]) != self.latent:
            raise ValueError(
                f"latent: {self.latent} is not allowed; allowed: {tuple(z.shape[1:])}, as the encoder has it"
            )
        if self.augmented:
            targets = self.objective.targets(observations, inputs)
        else:
            targets = self._targets_of_one_view(observations)
        return self.objective.losses(z, targets, actions, inputs, mask)

    def total(self, losses: dict[str, Tensor], step: Tensor | float | None = None) -> Tensor:
        """The losses with their weights at `step`, (B,)."""
        weight = self.virtual.lambda_cyc_max if step is None else self.virtual.lambda_cyc(step)
        return self.objective.total(losses, weight)

    def update_targets(self) -> None:
        """The momentum networks take `tau` of the online ones; a `target_encoder` that was given is left alone."""
        self._calls_since_update = 0
        if self._moves_target_encoder:
            soft_update(self.target_encoder, self._encoder[0], self.tau)
        assert isinstance(self.objective.g, nn.Module)
        soft_update(self.target_projector, self.objective.g, self.tau)

    @torch.no_grad()
    def action_dependence(self, observations: Tensor, generator: torch.Generator | None = None) -> float:
        """How much the forward model's prediction from observations (N, …) depends on the action, from 0 to 1."""
        z = _without_side_effects(self._encoder[0], observations)
        return action_dependence(self.virtual.h, z, self.virtual.actions, generator)

    @torch.no_grad()
    def target_spread(self, observations: Tensor) -> float:
        """Half the mean distance of the targets of observations (N, …): near 0 the representation has collapsed."""
        z = _without_side_effects(self.target_encoder, observations)
        return float(spread(_without_side_effects(self.target_projector, z).flatten(1)))

    @torch.no_grad()
    def _targets_of_one_view(self, observations: Tensor) -> Targets:
        """The targets without augmentation, where all views of s_t are the same: one serves all M cycles."""
        B, steps = observations.shape[:2]
        z_tilde = self.target_encoder(observations.flatten(0, 1))
        now, future = self.target_projector(z_tilde).unflatten(0, (B, steps)).split([1, steps - 1], 1)
        return Targets(rl=z_tilde[:0], future=future, cycle=now.expand(-1, self.virtual.M, -1))

    def _checked_actions(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B, K) whole numbers or (B, K, A) vectors; replay buffers often hold discrete actions as (B, K, 1)."""
        space, K = self.virtual.actions, self.virtual.K
        if isinstance(space, DiscreteActions):
            actions = actions.long()
            actions = actions.squeeze(2) if actions.shape[2:] == (1,) else actions
        if observations.shape[1] != K + 1:
            raise ValueError(f"observations: {tuple(observations.shape)} is not allowed; allowed: (B, {K + 1}, …)")
        shape = (len(observations), K, *(() if isinstance(space, DiscreteActions) else (space.size,)))
        if actions.shape != shape:
            raise ValueError(f"actions: {tuple(actions.shape)} is not allowed; allowed: {shape}")
        return actions

    @torch.no_grad()
    def _check_range(self, actions: Tensor) -> None:
        """Raises unless recorded actions lie in the space of the virtual ones; done once, since it waits for a GPU."""
        if self._in_range or not len(actions):
            return
        space = self.virtual.actions
        bounds = (0, space.n - 1) if isinstance(space, DiscreteActions) else (space.low, space.high)
        low, high = (torch.as_tensor(bound, dtype=torch.float32, device=actions.device) for bound in bounds)
        slack = 1e-3 * (high - low)  # of rounding
        if isinstance(space, DiscreteActions) and len(fractions := actions[actions != actions.long()]):
            raise ValueError(
                f"actions: fractions such as {float(fractions[0]):g} are not allowed; allowed: whole numbers, 0 to "
                f"{space.n - 1}, of the discrete space that was given as `actions`"
            )
        if not bool(((actions >= low - slack) & (actions <= high + slack)).all()):
            least, most = float(actions.min()), float(actions.max())
            raise ValueError(
                f"actions: values from {least:g} to {most:g} are not allowed; allowed: {bounds[0]} to {bounds[1]}, the "
                "bounds of the space that was given as `actions`"
            )
        self._in_range = True

    def _warn_if_targets_never_move(self) -> None:
        """Warns once, after many calls with gradients, that `update_targets` was not called."""
        self._calls_since_update += torch.is_grad_enabled() and self.tau > 0
        if self._calls_since_update == CALLS_BEFORE_WARNING:
            warnings.warn(
                f"update_targets() was not called in {CALLS_BEFORE_WARNING:,} calls of PlayVirtualLoss: its targets "
                "are those of an old encoder; call it after each step of the optimizer",
                stacklevel=4,
            )


@torch.no_grad()
def action_dependence(
    forward: Step, z: Tensor, actions: Any, generator: torch.Generator | None = None, *, draws: int = 16
) -> float:
    """The share of the variance of h(z, a) over states z (N, …) and uniform actions a that the actions account for.

    0: the model ignores its actions. 1: nothing but the action matters. Several states are needed. The model stays as
    it is.
    """
    space = action_space(actions)
    a = space.uniform((len(z) * draws,), generator, z.device)
    next_z = _without_side_effects(forward, z.repeat_interleave(draws, 0), a)  # (N · draws, …)
    predicted = next_z.flatten(1).unflatten(0, (len(z), draws))  # (N, draws, D)
    within, total = predicted.var(1).mean(), predicted.flatten(0, 1).var(0).mean()
    # Two estimates, of which the first may by chance be the larger one.
    return min(1.0, float(within / total.clamp_min(torch.finfo(total.dtype).tiny)))


def _without_side_effects(model: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """model(*inputs) with BatchNorm's running statistics, and all other buffers of a module, left as they are."""
    if not isinstance(model, nn.Module):
        return model(*inputs)
    copies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    out: Tensor = functional_call(model, copies, inputs)
    return out


class _NoRandoms(NamedTuple):
    """The random numbers of an augmentation that draws its own."""

    def split(self, sizes: list[int]) -> list[_NoRandoms]:
        return [self] * len(sizes)


class _Views:
    """Any function of observations (N, …) as an `Augmentation`, and none as the observations themselves."""

    def __init__(self, function: Callable[[Tensor], Tensor] | None) -> None:
        self.function = function

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> _NoRandoms:
        return _NoRandoms()

    def __call__(self, images: Tensor, randoms: _NoRandoms, source: Tensor | None = None) -> Tensor:
        views = images if source is None else images[source]
        return views if self.function is None else self.function(views)


def _latent_shape(latent: Any) -> tuple[int, ...]:
    """(features,) or (C, H, W); raises a ValueError for anything else."""
    shape: tuple[Any, ...] = tuple(latent) if isinstance(latent, Sequence) else (latent,)
    if len(shape) not in (1, 3) or not all(isinstance(n, Integral) and int(n) > 0 for n in shape):
        raise ValueError(f"latent: {latent!r} is not allowed; allowed: a number of features, or (C, H, W)")
    return shape


def _dynamics(shape: tuple[int, ...], space: ActionSpace) -> Dynamics:
    if len(shape) == 1:
        return DenseDynamics(shape[0], space, 2 * shape[0])
    if isinstance(space, DiscreteActions):
        return ConvDynamics(shape[0], space)
    raise ValueError(
        f"latent: {shape} is not allowed with continuous actions, for which there is no model of feature maps; "
        "allowed: a number of features, or a `forward` and a `backward` of your own"
    )


def _projector(shape: tuple[int, ...]) -> nn.Module:
    if len(shape) == 1:
        return ProjectionHead(shape[0], shape[0])
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], PROJECTION_SIZE))


def _predictor(shape: tuple[int, ...]) -> nn.Module:
    return ProjectionHead(shape[0], shape[0]) if len(shape) == 1 else nn.Linear(PROJECTION_SIZE, PROJECTION_SIZE)
