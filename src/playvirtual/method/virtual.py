"""Section 3 of the paper: rollouts, the prediction loss, the cycle loss over virtual trajectories.

Symbols are the paper's: z_t the encoded state, ẑ (z_hat) a forward prediction, z′ (z_cycle) a backward one,
z̃ (z_tilde) the target network's view of an observation, h and b the forward and backward dynamics model.
Shapes: B samples, K steps, M virtual trajectories per sample, "…" the shape of a latent state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from playvirtual.method.actions import action_space
from playvirtual.method.projection import cosine_distance

CONSTRAINTS = ("end", "every")
SAMPLINGS = ("uniform", "perturbed")

Dynamics = Callable[[Tensor, Tensor], Tensor]  # (N, …), (N, …a) -> (N, …)
Distance = Callable[[Tensor, Tensor], Tensor]  # (…, D), (…, D) -> (…)
Features = Callable[[Tensor], Tensor]  # (N, …) -> (N, D)


def rollout(model: Dynamics, z: Tensor, actions: Tensor) -> Tensor:
    """Eq. 1: ẑ_{t+k+1} = h(ẑ_{t+k}, a_{t+k}) from ẑ_t = z_t."""
    if (unrolled := _unroll(model, z, actions, len(z))) is not None:
        return unrolled[0]
    states = []
    for a in actions.unbind(1):  # (N, K, …a) -> K × (N, …a)
        z = model(z, a)
        states.append(z)
    return torch.stack(states, 1)  # (N, K, …): ẑ_{t+1} … ẑ_{t+K}


def endpoint(model: Dynamics, z: Tensor, actions: Tensor) -> Tensor:
    """ẑ_{t+K} alone, (N, …): the last state of `rollout`, the others not kept."""
    if (unrolled := _unroll(model, z, actions, 0)) is not None:
        return unrolled[1]
    for a in actions.unbind(1):
        z = model(z, a)
    return z


def _unroll(model: Dynamics, z: Tensor, actions: Tensor, first: int) -> tuple[Tensor, Tensor] | None:
    """From a model that takes many steps at once: `first` samples' states, the others' last ones; else None."""
    unroll = getattr(model, "unroll_two_batches", None)
    return None if unroll is None else unroll(z, actions, first)


def cycle(h: Dynamics, b: Dynamics, z: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Definition 1: K steps forward by h, then (Eq. 3) the same actions in reverse back by b."""
    z_hat = rollout(h, z, actions)  # (N, K, …): ẑ_{t+1} … ẑ_{t+K}
    z_cycle = rollout(b, z_hat[:, -1], actions.flip(1))  # (N, K, …): z′_{t+K−1} … z′_t
    return z_hat, z_cycle.flip(1)  # z′_t … z′_{t+K−1}


def prediction_loss(z_hat: Tensor, z_tilde: Tensor, d: Distance, mask: Tensor | None = None) -> Tensor:
    """Eq. 2: Σ_k d(ẑ_{t+k}, z̃_{t+k}); both (B, K, D) in the metric space of d, mask (B, K). Returns (B,)."""
    distances = d(z_hat, z_tilde)  # (B, K)
    return (distances if mask is None else distances * mask).sum(1)


def gaussian_ramp_up(step: Tensor | float, i_end: int, maximum: float = 1.0) -> Tensor:
    """λ_cyc(i) = λ_max · exp(−5 (1 − i/i_end)²) up to i_end, λ_max after it (and always, if i_end is 0)."""
    i = torch.as_tensor(step, dtype=torch.get_default_dtype())
    progress = (i / i_end).clamp(0.0, 1.0) if i_end > 0 else torch.ones_like(i)
    return maximum * torch.exp(-5.0 * (1.0 - progress) ** 2)


def total_objective(
    rl: Tensor, pred: Tensor, cyc: Tensor, lambda_pred: float | Tensor, lambda_cyc: float | Tensor
) -> Tensor:
    """Eq. 5: L_total = L_rl + λ_pred · L_pred + λ_cyc · L_cyc, per sample (B,)."""
    return rl + lambda_pred * pred + lambda_cyc * cyc


class Frozen:
    """The same function of (z, a) as `model`; gradients pass through to z but do not reach its parameters."""

    def __init__(self, model: Dynamics) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: {model!r} is no nn.Module; what else may learn in it cannot be known")
        self._model = model

    def __call__(self, z: Tensor, a: Tensor) -> Tensor:
        detached = {name: p.detach() for name, p in self._model.named_parameters()}
        out: Tensor = functional_call(self._model, detached, (z, a))
        return out

    def unroll_two_batches(self, z: Tensor, actions: Tensor, first: int) -> tuple[Tensor, Tensor] | None:
        unroll = getattr(self._model, "unroll_two_batches", None)
        return None if unroll is None else unroll(z, actions, first, frozen=True)


class VirtualTrajectories(nn.Module):
    """The paper's contribution as one module: λ_cyc(i) · L_cyc over M virtual trajectories of K steps.

    aux = VirtualTrajectories(forward=h, backward=b, projector=g, predictor=q, actions=space, horizon=9, copies=12)
    loss = rl_loss + aux(z, target, step=i).mean()

    `forward` and `backward` take (z, a) to a state of z's shape; those that have a method `unroll_two_batches`, as the
    models here do, are asked for many steps at once. Without `projector` the cycle is compared in the latent space
    itself. `target` is what the cycle must come back to, in that metric space and without gradient: g_m(z̃_t), or
    flattened z̃_t; (B, D), or (B, M, D) for one augmented view per trajectory.
    """

    def __init__(
        self,
        *,
        forward: Dynamics,
        backward: Dynamics,
        actions: Any,
        horizon: int,
        copies: int,
        projector: Features | None = None,
        predictor: Features | None = None,
        target_projector: Features | None = None,
        distance: Distance = cosine_distance,
        constraint: Literal["end", "every"] = "end",
        sampling: Literal["uniform", "perturbed"] = "uniform",
        sigma: float = 0.05,
        update_forward: bool = True,
        i_end: int = 50_000,
        lambda_max: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value, allowed in (("constraint", constraint, CONSTRAINTS), ("sampling", sampling, SAMPLINGS)):
            if value not in allowed:
                raise ValueError(f"{name}: {value!r} is not known; allowed: {', '.join(allowed)}")
        for name, number in (("horizon", horizon), ("copies", copies), ("i_end", i_end)):
            if not isinstance(number, Integral) or int(number) < 0:
                raise ValueError(f"{name}: {number!r} is not allowed; allowed: whole numbers from 0 on")
        for name, size in (("sigma", sigma), ("lambda_max", lambda_max)):
            if not isinstance(size, Real) or not 0 <= float(size) < math.inf:
                raise ValueError(f"{name}: {size!r} is not allowed; allowed: finite numbers from 0 on")
        for name, head in (("predictor", predictor), ("target_projector", target_projector)):
            if projector is None and head is not None:
                raise ValueError(f"{name}: is not allowed without a projector, which it follows; allowed: None")
        self.h, self.b = forward, backward
        self.g, self.q = projector, predictor
        self.g_m = projector if target_projector is None else target_projector
        self.actions = action_space(actions)
        self.K, self.M = horizon, copies
        self.d, self.constraint = distance, constraint
        self.sampling, self.sigma = sampling, sigma
        self._frozen_h = None if update_forward else Frozen(forward)
        self.takes_endpoints = update_forward and constraint == "end"
        self.i_end, self.lambda_max = i_end, lambda_max

    def draw(
        self,
        count: int,
        device: torch.device,
        generator: torch.Generator | None = None,
        recorded: Tensor | None = None,
    ) -> Tensor:
        """(B, M, K, …a) for B = `count`: virtual actions of every trajectory; `recorded` (B, K, …a) are perturbed."""
        if self.sampling == "uniform":
            return self.actions.uniform((count, self.M, self.K), generator, device)
        if recorded is None:
            raise ValueError("sampling='perturbed' needs the recorded actions (B, K, …)")
        if recorded.shape[:2] != (count, self.K):
            shape = f"({count}, {self.K}, …)"
            raise ValueError(f"recorded: {tuple(recorded.shape)} is not allowed; allowed: {shape}")
        copies = recorded[:, None].expand(-1, self.M, *recorded.shape[1:])
        return self.actions.perturb(copies, self.sigma, generator)

    def project(self, z: Tensor) -> Tensor:
        """The online side of the metric: q(g(z)), or z flattened. (N, …) -> (N, D)."""
        if self.g is None:
            return z.flatten(1)
        return self.q(self.g(z)) if self.q is not None else self.g(z)

    def foresee(self, z: Tensor, recorded: Tensor, virtual: Tensor) -> tuple[Tensor, Tensor | None]:
        """ẑ along the recorded actions (B, K, …a), and what `loss` may take as `ahead` for the virtual ones.

        One pass of h for both, each with its own batch statistics, where h can and nothing keeps them apart.
        """
        if self.takes_endpoints and virtual.numel() and hasattr(self.h, "unroll_two_batches"):
            starts = torch.cat([z, z.repeat_interleave(self.M, 0)])
            steps = torch.cat([recorded, virtual.flatten(0, 1)])
            if (unrolled := _unroll(self.h, starts, steps, len(z))) is not None:
                return unrolled
        return rollout(self.h, z, recorded), None

    def loss(self, z: Tensor, target: Tensor, actions: Tensor, ahead: Tensor | None = None) -> Tensor:
        """Eq. 4: L_cyc = 1/M Σ_m d_M(z′_t, z̃_t) along the given actions (B, M, K, …a). Returns (B,).

        `ahead` (B·M, …) is ẑ_{t+K} of the trajectories where h has made it already and the module `takes_endpoints`:
        not if every step counts or if h is not to learn from cycles.
        """
        if ahead is not None and not self.takes_endpoints:
            raise ValueError("ahead: is not allowed where every step counts or h is not to learn; allowed: None")
        B, M, K = actions.shape[:3]
        if M == 0 or K == 0:
            return z.new_zeros(B)
        if target.shape[:-1] not in ((B,), (B, M)):  # others would be broadcast to something nobody means
            raise ValueError(f"target: {tuple(target.shape)} is not allowed; allowed: ({B}, D) or ({B}, {M}, D)")
        h = self._frozen_h or self.h
        z, actions = z.repeat_interleave(M, 0), actions.flatten(0, 1)  # (B·M, …), (B·M, K, …a)
        if self.constraint == "every":
            z_hat, z_cycle = cycle(h, self.b, z, actions)  # (B·M, K, …)
            end, inner = z_cycle[:, 0], self._inner_steps(z_hat, z_cycle).unflatten(0, (B, M))
        else:
            ahead = endpoint(h, z, actions) if ahead is None else ahead
            end, inner = endpoint(self.b, ahead, actions.flip(1)), 0.0  # (B·M, …): z′_t
        if target.dim() == 2:
            target = target[:, None].expand(-1, M, -1)  # (B, M, D)
        distance: Tensor = inner + self.d(self.project(end).unflatten(0, (B, M)), target.detach())  # (B, M)
        return distance.mean(1)

    def _inner_steps(self, z_hat: Tensor, z_cycle: Tensor) -> Tensor:
        """Σ_{k=1}^{K−1} d_M(z′_{t+k}, ẑ_{t+k}); both (N, K, …), ẑ from t+1, z′ from t. Returns (N,)."""
        N, K = z_hat.shape[:2]
        online = self.project(z_cycle[:, 1:].flatten(0, 1))
        with torch.no_grad():
            inner = z_hat[:, :-1].flatten(0, 1)
            target = self.g_m(inner) if self.g_m is not None else inner.flatten(1)
        return self.d(online, target).view(N, K - 1).sum(1)

    def forward(
        self,
        z: Tensor,
        target: Tensor,
        step: Tensor | float | None = None,
        *,
        recorded: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """λ_cyc(step) · L_cyc per sample, (B,); without `step` the full weight λ_max."""
        weight = self.lambda_max if step is None else gaussian_ramp_up(step, self.i_end, self.lambda_max)
        return weight * self.loss(z, target, self.draw(len(z), z.device, generator, recorded))
