"""A plain reading of one update of SAC with SPR's prediction and PlayVirtual's cycles, for tests to compare with.

It is written from the paper and from what is known of the released code, and uses nothing of the package but the names
of its weights and the fields of its batches: a dict of weights, a function per network, a loop wherever the method has
an index (sample b, step k, trajectory m), one Adam per group of weights. Slow, in double precision, and without any of
the package's options for speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """The numbers of an update, each on its own so that no two can be mistaken for each other unnoticed."""

    strides: tuple[int, ...]
    crop_size: int
    log_std: tuple[float, float]
    encoder_tanh: bool = True
    intensity_scale: float = 0.3
    K: int = 3
    M: int = 2
    real_cycle: bool = False
    backward_prediction: bool = False
    every_step: bool = False
    latent_metric: bool = False
    mean_of_squares: bool = False  # the latent metric is a mean of squared differences instead of their sum
    cycle_trains_forward: bool = True
    lambda_pred: float = 1.0
    lambda_cyc_max: float = 1.0
    i_end: int = 0
    learning_rate: float = 1e-3
    auxiliary_learning_rate: float = 1e-3
    temperature_learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    temperature_beta1: float = 0.9
    adam_eps: float = 1e-8
    max_grad_norm: float = 10.0
    encoder_steps_twice: bool = False
    actor_period: int = 1
    critic_target_period: int = 1
    momentum_period: int = 1
    q_tau: float = 0.01
    encoder_tau: float = 0.01
    momentum_tau: float = 0.01


class Views(NamedTuple):
    """Random numbers of augmented views, with as many leading dimensions as the role has indices."""

    offsets: Tensor  # (…, 2): rows, then columns
    noise: Tensor  # (…): of the intensity


class Randoms(NamedTuple):
    """All random numbers of one update by their roles: B transitions, S sequences."""

    crops: Tensor  # (B, 2) of s_t in the losses of critic and actor
    next_crops: Tensor  # (B, 2) of s_{t+1} in the critic's target
    noise: Tensor  # (B, A) of the actor's action in s_t
    next_noise: Tensor  # (B, A) of its action in s_{t+1}
    now: Views  # (S,): s_t as the encoder sees it
    recorded: Views  # (S, K + 1): s_t … s_{t+K} as the momentum encoder sees them; s_t for backward prediction alone
    last: Views  # (S,): s_{t+K} as the encoder sees it, for backward prediction alone
    cycle: Views  # (S, M), (S, M + 1) with a real cycle: s_t as the momentum encoder sees it, once per trajectory
    virtual: Tensor  # (S, M, K, A)


# Networks


def convolutions(w: Weights, at: str, x: Tensor, strides: Sequence[int]) -> Tensor:
    for i, stride in enumerate(strides):
        x = torch.relu(F.conv2d(x, w[f"{at}.layers.{i}.weight"], w[f"{at}.layers.{i}.bias"], stride))
    return x


def linear(w: Weights, at: str, x: Tensor) -> Tensor:
    return x @ w[f"{at}.weight"].T + w[f"{at}.bias"]


def layer_norm(w: Weights, at: str, x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{at}.weight"] + w[f"{at}.bias"]


def latent(w: Weights, at: str, features: Tensor, tanh: bool) -> Tensor:
    z = layer_norm(w, f"{at}.ln", linear(w, f"{at}.fc", features.reshape(len(features), -1)))
    return torch.tanh(z) if tanh else z


def encode(w: Weights, at: str, x: Tensor, s: Settings) -> Tensor:
    return latent(w, f"{at}.latent", convolutions(w, f"{at}.convs", x, s.strides), s.encoder_tanh)


def two_hidden_layers(w: Weights, at: str, x: Tensor) -> Tensor:
    return linear(w, f"{at}.4", torch.relu(linear(w, f"{at}.2", torch.relu(linear(w, f"{at}.0", x)))))


def head(w: Weights, at: str, x: Tensor) -> Tensor:
    return linear(w, f"{at}.fc2", torch.relu(linear(w, f"{at}.fc1", x)))


def dynamics(w: Weights, at: str, z: Tensor, a: Tensor) -> Tensor:
    hidden = layer_norm(w, f"{at}.ln", linear(w, f"{at}.fc1", torch.cat([z, a], -1)))
    return linear(w, f"{at}.fc2", torch.relu(hidden))


def q_functions(w: Weights, at: str, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.cat([z, a], 1)
    q1, q2 = (two_hidden_layers(w, f"{at}.{q}", x)[:, 0] for q in ("q1", "q2"))
    return q1, q2


def policy(w: Weights, features: Tensor, s: Settings) -> Normal:
    """The Gaussian before squashing, on the features of the critic's convolutions."""
    out = two_hidden_layers(w, "actor.mlp", latent(w, "actor.latent", features, s.encoder_tanh))
    A = out.shape[1] // 2
    low, high = s.log_std
    return Normal(out[:, :A], (low + (high - low) * (torch.tanh(out[:, A:]) + 1) / 2).exp())


def act(law: Normal, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The squashed action and its log-probability; the small number is the released code's."""
    u = law.mean + law.stddev * noise
    a = torch.tanh(u)
    return a, (law.log_prob(u) - torch.log(1 - a**2 + 1e-6)).sum(1)


# Views


def crops(images: Tensor, offsets: Tensor, size: int) -> Tensor:
    """(N, C, H, W) uint8 -> (N, C, size, size) in [0, 1]."""
    found = [image[:, r : r + size, c : c + size] for image, (r, c) in zip(images, offsets.tolist(), strict=True)]
    return torch.stack(found).to(torch.float64) / 255


def view(image: Tensor, offset: Tensor, noise: Tensor, s: Settings) -> Tensor:
    """(C, H, W) uint8 -> (1, C, size, size): a crop times its intensity."""
    factor = 1 + s.intensity_scale * min(max(float(noise), -2.0), 2.0)
    return crops(image[None], offset[None], s.crop_size) * factor


def center(images: Tensor, size: int) -> Tensor:
    start = (images.shape[-1] - size) // 2
    return crops(images, torch.full((len(images), 2), start), size)


# Losses


def cosine(p: Tensor, t: Tensor) -> Tensor:
    """‖p/‖p‖ − t/‖t‖‖² of two vectors."""
    p, t = (x / x.norm().clamp_min(1e-3) for x in (p, t))
    return (p - t).square().sum()


@dataclass
class Adam:
    """Kingma & Ba's Algorithm 1 on the named weights."""

    names: list[str]
    lr: float
    beta1: float
    beta2: float
    eps: float
    t: int = 0
    m: Weights = field(default_factory=dict)
    v: Weights = field(default_factory=dict)

    def step(self, w: Weights, gradients: Weights) -> None:
        self.t += 1
        for name in self.names:
            g = gradients[name]
            self.m[name] = self.beta1 * self.m.get(name, 0.0) + (1 - self.beta1) * g
            self.v[name] = self.beta2 * self.v.get(name, 0.0) + (1 - self.beta2) * g**2
            m, v = self.m[name] / (1 - self.beta1**self.t), self.v[name] / (1 - self.beta2**self.t)
            w[name] = w[name] - self.lr * m / (v.sqrt() + self.eps)


def norm(gradients: Weights, names: Sequence[str]) -> Tensor:
    return sum((gradients[name] ** 2).sum() for name in names) ** 0.5  # type: ignore[return-value]


def clip(gradients: Weights, names: Sequence[str], largest: float) -> Tensor:
    """Scales the named gradients down to the norm `largest` in place; returns the norm before."""
    before = norm(gradients, names)
    for name in names:
        gradients[name] = gradients[name] * min(1.0, largest / (float(before) + 1e-6))
    return before


class PlainSac:
    """The weights, the optimizers, and `update`, which changes both and returns the metrics of that update."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        self.w, self.s = {name: value.detach().clone() for name, value in weights.items()}, settings
        s = settings

        def names(*parts: str) -> list[str]:
            return [name for name in weights if name.startswith(parts)]

        def adam(own: list[str], lr: float, beta1: float = s.beta1) -> Adam:
            return Adam(own, lr, beta1, s.beta2, s.adam_eps)

        self.critic = adam(names("critic."), s.learning_rate)
        self.actor = adam(names("actor."), s.learning_rate)
        self.temperature = adam(names("temperature."), s.temperature_learning_rate, s.temperature_beta1)
        self.auxiliary = adam(names("critic.encoder.", "auxiliary."), s.auxiliary_learning_rate)
        self.encoder = adam(names("critic.encoder."), s.auxiliary_learning_rate)

    def gradients(self, names: list[str], loss: Callable[[Weights], Tensor]) -> Weights:
        """Of a loss of all weights, for the named ones; every other weight is a constant."""
        w = {name: value.clone().requires_grad_(name in names) for name, value in self.w.items()}
        return dict(zip(names, torch.autograd.grad(loss(w), [w[name] for name in names]), strict=True))

    def mean_action(self, images: Tensor) -> Tensor:
        """What the agent does when it does not explore: it sees the center of the image."""
        return torch.tanh(self.center_policy(images).mean)

    def center_policy(self, images: Tensor) -> Normal:
        x = center(images, self.s.crop_size)
        return policy(self.w, convolutions(self.w, "critic.encoder.convs", x, self.s.strides), self.s)

    def update(self, number: int, step: int, transitions: Any, sequences: Any, randoms: Randoms) -> dict[str, Tensor]:
        """Update `number`, from 0, at `step`: critic, auxiliary objective, actor and temperature, then the targets."""
        s, found = self.s, self.update_critic(transitions, randoms)
        if s.K:
            found |= self.update_auxiliary(sequences, randoms, step)
        if number % s.actor_period == 0:
            found |= self.update_actor(transitions, randoms)
        if number % s.critic_target_period == 0:
            self.follow("target_critic.q1.", "critic.q1.", s.q_tau)
            self.follow("target_critic.q2.", "critic.q2.", s.q_tau)
            self.follow("target_critic.encoder.", "critic.encoder.", s.encoder_tau)
        if number % s.momentum_period == 0:
            self.follow("momentum.encoder.", "critic.encoder.", s.momentum_tau)
            self.follow("momentum.projector.", "auxiliary.projector.", s.momentum_tau)
        return found

    def follow(self, target: str, online: str, tau: float) -> None:
        for name in [name for name in self.w if name.startswith(target)]:
            self.w[name] = (1 - tau) * self.w[name] + tau * self.w[name.replace(target, online)]

    def update_critic(self, batch: Any, randoms: Randoms) -> dict[str, Tensor]:
        s, w = self.s, self.w
        x = crops(batch.next_observations, randoms.next_crops, s.crop_size)
        # The next action is the present actor's, on the present convolutions; its value is the target critic's.
        a, log_prob = act(policy(w, convolutions(w, "critic.encoder.convs", x, s.strides), s), randoms.next_noise)
        q1, q2 = q_functions(w, "target_critic", encode(w, "target_critic.encoder", x, s), a)
        value = torch.minimum(q1, q2) - w["temperature.log_alpha"].exp() * log_prob
        y = batch.rewards + batch.discounts * value
        found = {}

        def loss(w: Weights) -> Tensor:
            z = encode(w, "critic.encoder", crops(batch.observations, randoms.crops, s.crop_size), s)
            q1, q2 = q_functions(w, "critic", z, batch.actions)
            q = torch.minimum(q1, q2).detach()
            found.update(q=q.mean(), q_min=q.min(), q_max=q.max())
            found["loss_critic"] = F.mse_loss(q1, y) + F.mse_loss(q2, y)
            return found["loss_critic"]

        gradients = self.gradients(self.critic.names, loss)
        found["grad_norm_critic"] = norm(gradients, self.critic.names)  # which is not clipped
        self.critic.step(self.w, gradients)
        return found

    def update_actor(self, batch: Any, randoms: Randoms) -> dict[str, Tensor]:
        s, A = self.s, batch.actions.shape[1]
        x = crops(batch.observations, randoms.crops, s.crop_size)
        alpha = self.w["temperature.log_alpha"].exp()
        found: dict[str, Tensor] = {}

        def loss(w: Weights) -> Tensor:
            a, log_prob = act(policy(w, convolutions(w, "critic.encoder.convs", x, s.strides), s), randoms.noise)
            q1, q2 = q_functions(w, "critic", encode(w, "critic.encoder", x, s), a)
            found["entropy"] = -log_prob.detach().mean()
            found["loss_actor"] = (alpha * log_prob - torch.minimum(q1, q2)).mean()
            return found["loss_actor"]

        gradients = self.gradients(self.actor.names, loss)
        # α is to hold the entropy at −A, one negative unit per dimension of the actions.
        excess = found["entropy"] + A
        temperature = self.gradients(self.temperature.names, lambda w: w["temperature.log_alpha"].exp() * excess)
        self.actor.step(self.w, gradients)
        self.temperature.step(self.w, temperature)
        return {
            **found,
            "loss_alpha": alpha * excess,
            "grad_norm_actor": norm(gradients, self.actor.names),
            "alpha": self.w["temperature.log_alpha"].exp(),
        }

    def update_auxiliary(self, sequences: Any, randoms: Randoms, step: int) -> dict[str, Tensor]:
        s, found = self.s, {}
        weight = s.lambda_cyc_max
        if step < s.i_end:
            weight = s.lambda_cyc_max * math.exp(-5 * (1 - step / s.i_end) ** 2)

        def loss(w: Weights) -> Tensor:
            S = len(sequences.observations)
            pred = [self.prediction_loss(w, b, sequences, randoms) for b in range(S)]
            cyc = [self.cycle_loss(w, b, sequences, randoms) for b in range(S)]
            found["loss_pred"], found["loss_cyc"] = torch.stack(pred).mean(), torch.stack(cyc).mean()
            targets = [self.recorded_target(w, b, 1, sequences, randoms) for b in range(S)]
            found["target_spread"] = (
                torch.stack([cosine(one, other) for one in targets for other in targets]).mean() / 2
            )
            found["loss_auxiliary"] = s.lambda_pred * found["loss_pred"] + weight * found["loss_cyc"]
            if s.backward_prediction:
                back = [self.backward_prediction_loss(w, b, sequences, randoms) for b in range(S)]
                found["loss_backward_pred"] = torch.stack(back).mean()
                found["loss_auxiliary"] = found["loss_auxiliary"] + s.lambda_pred * found["loss_backward_pred"]
            return found["loss_auxiliary"]

        gradients = self.gradients(self.auxiliary.names, loss)
        if s.encoder_steps_twice:
            clip(gradients, self.encoder.names, s.max_grad_norm)
        found["grad_norm_auxiliary"] = clip(gradients, self.auxiliary.names, s.max_grad_norm)
        if s.encoder_steps_twice:
            self.encoder.step(self.w, gradients)
        self.auxiliary.step(self.w, gradients)
        return found

    def z(self, w: Weights, b: int, sequences: Any, randoms: Randoms) -> Tensor:
        """z_t of sequence b, (1, D)."""
        x = view(sequences.observations[b, 0], randoms.now.offsets[b], randoms.now.noise[b], self.s)
        return encode(w, "critic.encoder", x, self.s)

    def prediction_loss(self, w: Weights, b: int, sequences: Any, randoms: Randoms) -> Tensor:
        """Eq. 2 of sequence b."""
        z_hat, total = self.z(w, b, sequences, randoms), torch.zeros(())
        for k in range(self.s.K):
            z_hat = dynamics(w, "auxiliary.forward_dynamics", z_hat, sequences.actions[b, k][None])  # ẑ_{t+k+1}
            total = total + sequences.mask[b, k + 1] * self.recorded_distance(w, b, k + 1, z_hat, sequences, randoms)
        return total

    def backward_prediction_loss(self, w: Weights, b: int, sequences: Any, randoms: Randoms) -> Tensor:
        """Of sequence b from its last state back to its first one; it counts if all of them belong to the episode."""
        s, total = self.s, torch.zeros(())
        x = view(sequences.observations[b, s.K], randoms.last.offsets[b], randoms.last.noise[b], s)
        z = encode(w, "critic.encoder", x, s)
        for k in reversed(range(s.K)):
            z = dynamics(w, "auxiliary.backward_dynamics", z, sequences.actions[b, k][None])
            total = total + self.recorded_distance(w, b, k, z, sequences, randoms)
        return sequences.mask[b, s.K] * total

    def recorded_target(self, w: Weights, b: int, k: int, sequences: Any, randoms: Randoms) -> Tensor:
        """What the momentum network makes of s_{t+k} of sequence b."""
        offset, noise = randoms.recorded.offsets[b, k], randoms.recorded.noise[b, k]
        seen = encode(w, "momentum.encoder", view(sequences.observations[b, k], offset, noise, self.s), self.s)
        return head(w, "momentum.projector", seen)[0].detach()

    def recorded_distance(
        self, w: Weights, b: int, k: int, z: Tensor, sequences: Any, randoms: Randoms
    ) -> Tensor:  # fmt: skip
        """Between the prediction z of s_{t+k} of sequence b and what the momentum network makes of that state."""
        target = self.recorded_target(w, b, k, sequences, randoms)
        prediction = head(w, "auxiliary.predictor", head(w, "auxiliary.projector", z))
        return cosine(prediction[0], target)

    def cycle_loss(self, w: Weights, b: int, sequences: Any, randoms: Randoms) -> Tensor:
        """Eq. 4 of sequence b; the cycle along the recorded actions is added to the mean over the virtual ones."""
        s, total = self.s, torch.zeros(())
        for m in range(s.M):
            total = total + self.one_cycle(w, b, m, randoms.virtual[b, m], sequences, randoms) / s.M
        if s.real_cycle:
            total = total + self.one_cycle(w, b, s.M, sequences.actions[b], sequences, randoms)
        return sequences.mask[b, 0] * total

    def one_cycle(self, w: Weights, b: int, m: int, actions: Tensor, sequences: Any, randoms: Randoms) -> Tensor:
        """From z_t along the actions by h, back by b, to the momentum network's m-th view of s_t."""
        s = self.s
        h = w if s.cycle_trains_forward else {name: value.detach() for name, value in w.items()}
        z_hat = [self.z(w, b, sequences, randoms)]
        for k in range(s.K):
            z_hat.append(dynamics(h, "auxiliary.forward_dynamics", z_hat[k], actions[k][None]))
        z_cycle = {s.K: z_hat[s.K]}
        for k in reversed(range(s.K)):
            z_cycle[k] = dynamics(w, "auxiliary.backward_dynamics", z_cycle[k + 1], actions[k][None])
        seen = view(sequences.observations[b, 0], randoms.cycle.offsets[b, m], randoms.cycle.noise[b, m], s)
        total = self.distance(w, z_cycle[0], encode(w, "momentum.encoder", seen, s))
        for k in range(1, s.K) if s.every_step else ():
            total = total + self.distance(w, z_cycle[k], z_hat[k])
        return total

    def distance(self, w: Weights, z: Tensor, target: Tensor) -> Tensor:
        """d_M(z, target), where the target has no gradient."""
        if self.s.latent_metric:
            return cosine(z[0], target[0].detach()) / (z.shape[1] if self.s.mean_of_squares else 1)
        online = head(w, "auxiliary.predictor", head(w, "auxiliary.projector", z))
        return cosine(online[0], head(w, "momentum.projector", target)[0].detach())
