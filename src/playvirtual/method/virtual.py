"""Section 3 of the paper: rollouts, the prediction loss, the cycle loss over virtual trajectories.

Symbols are the paper's: z_t the encoded state, ẑ (z_hat) a forward prediction, z′ (z_cycle) a backward one,
z̃ (z_tilde) the target network's view of an observation, h and b the forward and backward dynamics model.
Shapes: B samples, K steps, M virtual trajectories per sample, "…" the shape of a latent state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from playvirtual.method.actions import DiscreteActions, action_space
from playvirtual.method.dynamics import Dynamics, RolloutBatch, Step, as_dynamics
from playvirtual.method.projection import cosine_distance
from playvirtual.method.samplers import (
    PolicyFunction,
    Sampler,
    SamplerInput,
    Uniform,
    check_nonnegative,
    check_whole,
    checked_sampler,
)

CONSTRAINTS = ("end", "every")

Distance = Callable[[Tensor, Tensor], Tensor]  # (…, D), (…, D) -> (…)
Features = Callable[[Tensor], Tensor]  # (N, …) -> (N, D)


def cycle(
    h: Dynamics,
    b: Dynamics,
    z: Tensor,
    actions: Tensor,
    z_hat: Tensor | None = None,
    *,
    train_h: bool = True,
    every_step: bool = True,
) -> tuple[Tensor, Tensor]:
    """Definition 1: K steps forward by h, then (Eq. 3) the same actions in reverse back by b.

    z (N, …), actions (N, K, …a), or z (N/M, …) with M trajectories from each state. Returns ẑ_{t+1} … ẑ_{t+K} and
    z′_t … z′_{t+K−1}, (N, K, …) each; without `every_step` ẑ_{t+K} and z′_t alone, (N, 1, …) each. `z_hat` is what h
    has made of these trajectories already, if it has.
    """
    if z_hat is None:
        (z_hat,) = h.rollouts(RolloutBatch(z, actions, last_only=not every_step), frozen=not train_h)
    z_hat_K = z_hat[:, -1] if every_step else z_hat.flatten(0, 1)
    (z_cycle,) = b.rollouts(RolloutBatch(z_hat_K, actions.flip(1), last_only=not every_step))
    return z_hat, z_cycle.flip(1) if every_step else z_cycle


def prediction_loss(z_hat: Tensor, z_tilde: Tensor, d: Distance, mask: Tensor | None = None) -> Tensor:
    """Eq. 2: Σ_k d(ẑ_{t+k}, z̃_{t+k}); both (B, K, D) in the metric space of d, mask (B, K). Returns (B,)."""
    distances = d(z_hat, z_tilde)  # (B, K)
    return (distances if mask is None else distances * mask).sum(1)


def gaussian_ramp_up(step: Tensor | float, i_end: int, maximum: float = 1.0) -> Tensor:
    """λ_cyc(i) = λ_max · exp(−5 (1 − i/i_end)²) up to i_end, λ_max after it (and always, if i_end is 0)."""
    i = torch.as_tensor(step, dtype=torch.get_default_dtype())
    progress = (i / i_end).clamp(0.0, 1.0) if i_end > 0 else torch.ones_like(i)
    return maximum * torch.exp(-5.0 * (1.0 - progress) ** 2)


class VirtualTrajectories(nn.Module):
    """The paper's contribution as one module: λ_cyc(i) · L_cyc over M virtual trajectories of K steps.

    aux = VirtualTrajectories(forward=h, backward=b, projector=g, predictor=q, actions=space, K=9, M=12)
    loss = rl_loss + aux(z, target, step=i).mean()

    `forward` and `backward` are any models (z, a) -> z of the next step; a `Dynamics` may roll out many steps at once.
    Without `projector` the cycle is compared in the latent space itself. `target` is what the cycle must come back to,
    in that metric space and without gradient: g_m(z̃_t), or flattened z̃_t; (B, D), or (B, M, D) for one augmented view
    per trajectory. `sampler` draws the virtual actions, uniformly by default.

    The forward model must learn from recorded steps by some other loss: by cycles alone it forgets its actions.
    `PlayVirtualLoss` brings that loss along.
    """

    def __init__(
        self,
        *,
        forward: Step,
        backward: Step,
        actions: Any,
        K: int,
        M: int,
        projector: Features | None = None,
        predictor: Features | None = None,
        target_projector: Features | None = None,
        distance: Distance = cosine_distance,
        constraint: Literal["end", "every"] = "end",
        sampler: Sampler | None = None,
        train_forward: bool = True,
        i_end: int = 50_000,
        lambda_cyc_max: float = 1.0,
    ) -> None:
        super().__init__()
        if constraint not in CONSTRAINTS:
            raise ValueError(f"constraint: {constraint!r} is not known; allowed: {', '.join(CONSTRAINTS)}")
        for name, number in (("K", K), ("M", M), ("i_end", i_end)):
            check_whole(name, number, 0)
        check_nonnegative("lambda_cyc_max", lambda_cyc_max)
        for name, model in (("forward", forward), ("backward", backward)):
            if isinstance(model, type) or not callable(model):
                raise TypeError(f"{name}: {model!r} is not allowed; allowed: a model, called with (z, a)")
        for name, head in (("predictor", predictor), ("target_projector", target_projector)):
            if projector is None and head is not None:
                raise ValueError(f"{name}: is not allowed without a projector, which it follows; allowed: None")
        if not train_forward and not isinstance(forward, nn.Module):
            raise TypeError(f"forward: {forward!r} is not an nn.Module, so its parameters cannot be left untrained")
        self.h, self.b = as_dynamics(forward), as_dynamics(backward)
        self.g, self.q = projector, predictor
        self.g_m = projector if target_projector is None else target_projector
        self.actions = action_space(actions)
        self.K, self.M = K, M
        self.d, self.every_step, self.train_forward = distance, constraint == "every", train_forward
        self.sampler = Uniform() if sampler is None else checked_sampler(sampler)
        self.i_end, self.lambda_cyc_max = i_end, lambda_cyc_max

    def lambda_cyc(self, step: Tensor | float) -> Tensor:
        """The weight of the cycle loss at `step`: the Gaussian ramp-up to its maximum."""
        return gaussian_ramp_up(step, self.i_end, self.lambda_cyc_max)

    def draw(
        self,
        batch_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
        *,
        recorded: Tensor | None = None,
        z: Tensor | None = None,
        policy: PolicyFunction | None = None,
    ) -> Tensor:
        """(B, M, K, …a): virtual actions by the sampler, which sees the recorded ones (B, K, …a) and the states z."""
        if recorded is not None and recorded.shape[:2] != (batch_size, self.K):
            shape = f"({batch_size}, {self.K}, …)"
            raise ValueError(f"recorded: {tuple(recorded.shape)} is not allowed; allowed: {shape}")
        seen = SamplerInput(
            self.actions, batch_size, self.M, self.K, device, generator, recorded, z, self.h, policy
        )  # fmt: skip
        with torch.no_grad():
            drawn = self.sampler(seen)
        if drawn.shape[:3] != (batch_size, self.M, self.K):
            shape = f"({batch_size}, {self.M}, {self.K}, …)"
            raise ValueError(f"sampler: it gave actions of shape {tuple(drawn.shape)}; allowed: {shape}")
        if isinstance(self.actions, DiscreteActions) and drawn.dtype != torch.int64:
            kind = str(drawn.dtype).removeprefix("torch.")
            raise ValueError(f"sampler: it gave actions of the type {kind}; allowed: int64, as of discrete actions")
        return drawn

    def project(self, z: Tensor) -> Tensor:
        """The online side of the metric: q(g(z)), or z flattened. (N, …) -> (N, D)."""
        if self.g is None:
            return z.flatten(1)
        return self.q(self.g(z)) if self.q is not None else self.g(z)

    def rollout(self, z: Tensor, recorded: Tensor, virtual: Tensor) -> tuple[Tensor, Tensor | None]:
        """ẑ along the recorded actions (B, K, …), and along the virtual ones what `loss` takes as `z_hat`.

        One pass of h serves both, each with its own batch statistics. Where every step counts or h is not to learn
        from cycles, `loss` rolls the virtual trajectories out itself, and the second is None.
        """
        alone = RolloutBatch(z, recorded)
        if self.every_step or not self.train_forward or not virtual.numel():
            return self.h.rollouts(alone)[0], None
        z_hat, z_hat_K = self.h.rollouts(alone, RolloutBatch(z, virtual.flatten(0, 1), last_only=True))
        return z_hat, z_hat_K

    def loss(self, z: Tensor, target: Tensor, actions: Tensor, z_hat: Tensor | None = None) -> Tensor:
        """Eq. 4: L_cyc = 1/M Σ_m d_M(z′_t, z̃_t) along the given actions (B, M, K, …a). Returns (B,).

        `z_hat` (B·M, 1, …) is ẑ_{t+K} of the trajectories, where `rollout` has made it.
        """
        B, M, K = actions.shape[:3]
        if M == 0 or K == 0:
            return z.new_zeros(B)
        z_hat, z_cycle = self._cycle(z, actions, z_hat)
        z_cycle_t = z_cycle[:, 0] if self.every_step else z_cycle.flatten(0, 1)  # (B·M, …): z′_t
        distance = self._distance(self.project(z_cycle_t).unflatten(0, (B, M)), target)
        if self.every_step:
            distance = distance + self._inner_steps(z_hat, z_cycle).unflatten(0, (B, M))
        return distance.mean(1)

    def ends(self, z: Tensor, actions: Tensor, z_hat: Tensor | None = None) -> Tensor:
        """z′_t, in which cycles along the actions (B, M, K, …a) end, (B·M, …); `z_hat` as in `loss`.

        `project` takes them into the metric space, where `closing_loss` compares them. The constraint "every" compares
        the steps between as well, which only `loss` does.
        """
        if self.every_step:
            raise ValueError("ends: with constraint='every' the steps between count as well; allowed: `loss`")
        return self._cycle(z, actions, z_hat)[1].flatten(0, 1)

    def closing_loss(self, end: Tensor, target: Tensor) -> Tensor:
        """Eq. 4 for projected ends of cycles (B, M, D) and targets (B, D) or (B, M, D). Returns (B,)."""
        return self._distance(end, target).mean(1)

    def _cycle(self, z: Tensor, actions: Tensor, z_hat: Tensor | None) -> tuple[Tensor, Tensor]:
        """ẑ and z′ of cycles along the actions (B, M, K, …a): (B·M, K, …) each, or the last ones alone, (B·M, 1, …)."""
        if z_hat is not None and (self.every_step or not self.train_forward):
            raise ValueError("z_hat: is not allowed where every step counts or h is not to learn; allowed: None")
        flat = actions.flatten(0, 1)  # (B·M, K, …a)
        return cycle(self.h, self.b, z, flat, z_hat, train_h=self.train_forward, every_step=self.every_step)

    def _distance(self, end: Tensor, target: Tensor) -> Tensor:
        """d_M(z′_t, z̃_t) of projected ends (B, M, D) and targets (B, D) or (B, M, D). Returns (B, M)."""
        B, M = end.shape[:2]
        if target.shape[:-1] not in ((B,), (B, M)):  # any other shape would broadcast to something else
            raise ValueError(f"target: {tuple(target.shape)} is not allowed; allowed: ({B}, D) or ({B}, {M}, D)")
        target = target[:, None].expand(-1, M, -1) if target.dim() == 2 else target
        return self.d(end, target.detach())

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
        policy: PolicyFunction | None = None,
    ) -> Tensor:
        """λ_cyc(step) · L_cyc per sample, (B,); without `step` the full weight λ_cyc_max."""
        weight = self.lambda_cyc_max if step is None else self.lambda_cyc(step)
        actions = self.draw(len(z), z.device, generator, recorded=recorded, z=z.detach(), policy=policy)
        return weight * self.loss(z, target, actions)
