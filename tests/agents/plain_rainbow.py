"""Rainbow with SPR and PlayVirtual as a slow, plain reading of the paper: what the agent's updates are compared with.

Everything is a plain function of a dict of weights, one sample, one step and one trajectory at a time wherever that is
possible. None of the project's mathematics is used; names of weights, batches and options are the project's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual.replay.batches import RainbowBatch

Weights = dict[str, Tensor]
MODELS = {"h": "forward_dynamics", "b": "backward_dynamics"}


class ViewDraw(NamedTuple):
    """The random numbers of one augmented view."""

    top: int  # the row and column of the padded image at which the view begins
    left: int
    normal: float  # for the intensity


class Draws(NamedTuple):
    """Everything random in one update."""

    online: list[ViewDraw]  # (B) for s_t through the online encoder
    rl: list[ViewDraw]  # (B) for s_{t+n} through the online encoder
    rl_target: list[ViewDraw]  # (B) for s_{t+n} through the target encoder
    future: list[list[ViewDraw]]  # (B, K) for s_{t+1} … s_{t+K} through the target encoder
    cycle: list[list[ViewDraw]]  # (B, views) for s_t through the target encoder
    virtual: list[list[list[int]]]  # (B, M, K) virtual actions
    noise: Weights  # of the online head's noisy layers
    past: list[
        list[ViewDraw]
    ]  # (B, K) for s_t … s_{t+K−1} through the target encoder; (B, 0) without backward prediction
    last: list[ViewDraw]  # (B) for s_{t+K} through the online encoder; (0) without backward prediction


def augmented(image: Tensor, draw: ViewDraw, pad: int, scale: float) -> Tensor:
    """A shifted image (C, H, W) whose border is repeated, brighter or darker."""
    _, height, width = image.shape
    rows = [min(max(draw.top - pad + y, 0), height - 1) for y in range(height)]
    columns = [min(max(draw.left - pad + x, 0), width - 1) for x in range(width)]
    return image[:, rows][:, :, columns].double() / 255 * (1 + scale * min(max(draw.normal, -2.0), 2.0))


def rescaled(x: Tensor) -> Tensor:
    """One sample, moved and stretched to [0, 1]."""
    return (x - x.min()) / (x.max() - x.min()).clamp(min=1e-6)


def encoded(w: Weights, image: Tensor, strides: tuple[int, ...]) -> Tensor:
    """f(image): (C, H, W) floats to one latent state."""
    x = image
    for i, stride in enumerate(strides):
        x = torch.relu(F.conv2d(x[None], w[f"encoder.convs.{i}.weight"], w[f"encoder.convs.{i}.bias"], stride)[0])
    if "encoder.fc.weight" in w:
        x = w["encoder.fc.weight"] @ x.flatten() + w["encoder.fc.bias"]
    return rescaled(x)


def noisy_linear(w: Weights, layer: str, x: Tensor, noise: Weights | None) -> Tensor:
    """(μ_w + σ_w ⊙ ε_out ε_inᵀ) x + μ_b + σ_b ⊙ ε_out; without noise ε = 0."""
    weight, bias = w[f"{layer}.weight_mu"], w[f"{layer}.bias_mu"]
    if noise is not None:
        epsilon_in, epsilon_out = noise[f"{layer}.noise_in"], noise[f"{layer}.noise_out"]
        weight = weight + w[f"{layer}.weight_sigma"] * (epsilon_out[:, None] * epsilon_in[None, :])
        bias = bias + w[f"{layer}.bias_sigma"] * epsilon_out
    return weight @ x + bias


def return_logits(w: Weights, z: Tensor, atoms: int, noise: Weights | None) -> Tensor:
    """The dueling head on one state: (|A|, atoms). The gradient into z is that of z / √2."""
    x = z.flatten() / math.sqrt(2) + (z.flatten() * (1 - 1 / math.sqrt(2))).detach()
    value = noisy_linear(w, "head.value.out", torch.relu(noisy_linear(w, "head.value.hidden", x, noise)), noise)
    hidden = torch.relu(noisy_linear(w, "head.advantage.hidden", x, noise))
    advantage = noisy_linear(w, "head.advantage.out", hidden, noise).view(-1, atoms) + w["head.atom_bias"]
    return torch.stack([value + one - sum(advantage) / len(advantage) for one in advantage])


def action_values(logits: Tensor, v_max: float) -> list[float]:
    """(|A|, atoms) logits to the expected return of every action."""
    spacing = 2 * v_max / (logits.shape[1] - 1)
    found = []
    for row in logits.detach():
        odds = [math.exp(x) for x in row.tolist()]
        found.append(sum(odd * (-v_max + j * spacing) for j, odd in enumerate(odds)) / sum(odds))
    return found


def projected_return(ret: float, discount: float, probabilities: list[float], v_max: float) -> list[float]:
    """C51: the distribution of ret + discount · Z on the atoms of Z, atom by atom."""
    atoms = len(probabilities)
    spacing = 2 * v_max / (atoms - 1)
    found = [0.0] * atoms
    for j, mass in enumerate(probabilities):
        moved = min(max(ret + discount * (-v_max + j * spacing), -v_max), v_max)
        position = (moved + v_max) / spacing
        below = min(math.floor(position), atoms - 2)
        found[below] += mass * (1 - (position - below))
        found[below + 1] += mass * (position - below)
    return found


def projection(w: Weights, z: Tensor) -> Tensor:
    """g(z): the first layers of both streams side by side, without noise and without ReLU."""
    return torch.cat([noisy_linear(w, f"head.{stream}.hidden", z.flatten(), None) for stream in ("value", "advantage")])


def prediction(w: Weights, z: Tensor) -> Tensor:
    """q(g(z))."""
    return w["predictor.weight"] @ projection(w, z) + w["predictor.bias"]


def cosine(p: Tensor, t: Tensor) -> Tensor:
    """‖p/‖p‖ − t/‖t‖‖², norms at least 1e-3."""
    length_p, length_t = p.square().sum().sqrt().clamp(min=1e-3), t.square().sum().sqrt().clamp(min=1e-3)
    return (p / length_p - t / length_t).square().sum()


def latent_distance(name: str, p: Tensor, t: Tensor) -> Tensor:
    """The distances of the latent metric."""
    if name == "mse":
        return (p - t).square().sum() / len(p)
    return cosine(p, t) / (len(p) if name == "normalised-mse" else 1)


def ramp_up(step: int, i_end: int, maximum: float) -> float:
    """λ_cyc(i): a Gaussian ramp up to i_end."""
    return maximum if step >= i_end else maximum * math.exp(-5 * (1 - step / i_end) ** 2)


class PlainRainbow:
    """The agent's weights, target networks and Adam moments; `update` is one update."""

    def __init__(self, agent_options: Any, objective_options: Any, num_actions: int, M: int) -> None:
        self.c, self.o, self.num_actions, self.M = agent_options, objective_options, num_actions, M
        self.w: Weights = {}  # parameters of the online networks, each with gradient if it learns
        self.statistics: Weights = {}  # running statistics of the dynamics models' BatchNorm
        self.target: Weights = {}  # parameters and noise of the target encoder and head
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        self.steps = 0

    def load(self, online: Mapping[str, Tensor], target: Mapping[str, Tensor], frozen: str | None = None) -> None:
        """Copies of the online networks' states, of which `frozen` names what does not learn, and of the targets'."""
        for name, value in online.items():
            if "running" in name:
                self.statistics[name] = value.detach().clone()
            elif "noise" not in name and "num_batches" not in name:
                self.w[name] = value.detach().clone().requires_grad_(frozen is None or not name.startswith(frozen))
        self.target = {name: value.detach().clone() for name, value in target.items()}

    def model_step(self, w: Weights, model: str, z: Tensor, actions: list[int]) -> Tensor:
        """One step of h or b for N states (N, …); BatchNorm's statistics are those of these N."""
        one_hot = torch.zeros(len(actions), self.num_actions, dtype=z.dtype)
        for n, a in enumerate(actions):
            one_hot[n, a] = 1
        if f"{model}.fc1.weight" in w:
            states = []
            for n in range(len(z)):
                x = w[f"{model}.fc1.weight"] @ torch.cat([z[n], one_hot[n]]) + w[f"{model}.fc1.bias"]
                x = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()
                x = torch.relu(x * w[f"{model}.ln.weight"] + w[f"{model}.ln.bias"])
                states.append(rescaled(w[f"{model}.fc2.weight"] @ x + w[f"{model}.fc2.bias"]))
            return torch.stack(states)
        planes = one_hot[:, :, None, None].expand(-1, -1, *z.shape[2:])
        x = F.conv2d(torch.cat([z, planes], 1), w[f"{model}.conv1.weight"], w[f"{model}.conv1.bias"], padding=1)
        channels = torch.relu(x).transpose(0, 1)  # (C, N, H, W)
        normal = []
        for c, values in enumerate(channels):
            mean, variance = values.mean(), values.var(unbiased=False)
            normal.append(
                (values - mean) / (variance + 1e-5).sqrt() * w[f"{model}.bn.weight"][c] + w[f"{model}.bn.bias"][c]
            )
            for name, seen in (("mean", mean), ("var", values.var())):
                running = self.statistics[f"{model}.bn.running_{name}"]
                running[c] = 0.9 * running[c] + 0.1 * seen.detach()
        x = F.conv2d(torch.stack(normal, 1), w[f"{model}.conv2.weight"], w[f"{model}.conv2.bias"], padding=1)
        return torch.stack([rescaled(one) for one in torch.relu(x)])

    def rollout(self, w: Weights, z: Tensor, actions: list[list[int]]) -> list[Tensor]:
        """Eq. 1: the K states (N, …) that h predicts along the actions (N, K)."""
        states = []
        for k in range(self.o.K):
            z = self.model_step(w, MODELS["h"], z, [sequence[k] for sequence in actions])
            states.append(z)
        return states

    def way_back(self, z: Tensor, actions: list[list[int]]) -> list[Tensor]:
        """Eq. 3: the states that b makes of ẑ_{t+K} with the same actions in reverse, given from t on."""
        states: list[Tensor] = []
        for k in reversed(range(self.o.K)):
            z = self.model_step(self.w, MODELS["b"], z, [sequence[k] for sequence in actions])
            states.insert(0, z)
        return states

    def cycle_losses(self, z_start: list[Tensor], actions: list[list[int]], targets: list[Tensor]) -> list[Tensor]:
        """d_M(z′_t, target) of every trajectory; with every step also d_M(z′_{t+k}, ẑ_{t+k}) inside."""
        w = self.w
        if not self.o.cycle_trains_forward:
            w = {name: p.detach() if name.startswith(MODELS["h"]) else p for name, p in self.w.items()}
        z_hat = self.rollout(w, torch.stack(z_start), actions)
        z_back = self.way_back(z_hat[-1], actions)
        losses = []
        for n, target in enumerate(targets):
            loss = self.cycle_distance(z_back[0][n], target)
            if self.o.constraint == "every":
                for k in range(1, self.o.K):  # ẑ_{t+k} is the k-th state of the rollout
                    loss = loss + self.cycle_distance(z_back[k][n], z_hat[k - 1][n].detach())
            losses.append(loss)
        return losses

    def cycle_distance(self, z: Tensor, target: Tensor) -> Tensor:
        """In the projection's metric space q(g(z)) against g_m(target), else both states as they are."""
        if self.o.metric == "latent":
            return latent_distance(self.o.latent_distance, z.flatten(), target.flatten())
        return cosine(prediction(self.w, z), projection(self.target, target))

    def losses(self, batch: RainbowBatch, draws: Draws) -> dict[str, list[Any]]:
        """L_rl, L_pred, L_cyc, the new priority and max_a Q(s_t, a) of every sample; backward_pred if it is on.

        With K > 0 the target of s_{t+1} as well.
        """
        c, o, B = self.c, self.o, len(batch.returns)
        observations, actions = batch.sequences.observations, batch.sequences.actions.tolist()
        mask = batch.sequences.mask.tolist()

        def encode(w: Weights, image: Tensor, draw: ViewDraw) -> Tensor:
            return encoded(w, augmented(image, draw, c.shift_pad, c.intensity_scale), c.strides)

        z = [encode(self.w, observations[b, 0], draws.online[b]) for b in range(B)]
        found: dict[str, list[Any]] = {"rl": [], "pred": [], "cyc": [], "priority": [], "q": []}
        for b in range(B):
            logits = return_logits(self.w, z[b], c.atoms, draws.noise)
            # Double DQN: the online network, with this update's noise, chooses what the target network values.
            z_next = encode(self.w, batch.next_observations[b], draws.rl[b])
            values = action_values(return_logits(self.w, z_next, c.atoms, draws.noise), c.v_max)
            best = values.index(max(values))
            z_target = encode(self.target, batch.next_observations[b], draws.rl_target[b])
            probabilities = return_logits(self.target, z_target, c.atoms, self.target)[best].softmax(0).tolist()
            target = projected_return(float(batch.returns[b]), float(batch.discounts[b]), probabilities, c.v_max)
            log_p = logits[actions[b][0]].log_softmax(0)
            found["rl"].append(-sum(p * log_q for p, log_q in zip(target, log_p, strict=True)))
            kl = sum(
                max(p, 1e-6) * (math.log(max(p, 1e-6)) - log_q) for p, log_q in zip(target, log_p.tolist(), strict=True)
            )
            found["priority"].append(min(max(kl, 1e-6), 1e6))
            found["q"].append(max(action_values(logits, c.v_max)))
        found["pred"] = [torch.zeros((), dtype=z[0].dtype) for _ in range(B)]
        found["cyc"] = [torch.zeros((), dtype=z[0].dtype) for _ in range(B)]
        if not o.K:
            return found
        z_hat = self.rollout(self.w, torch.stack(z), actions)
        found["next_target"] = []
        for b in range(B):
            for k in range(1, o.K + 1):
                z_tilde = encode(self.target, observations[b, k], draws.future[b][k - 1])
                target = projection(self.target, z_tilde)
                if k == 1:
                    found["next_target"].append(target)
                distance = cosine(prediction(self.w, z_hat[k - 1][b]), target)
                found["pred"][b] = found["pred"][b] + mask[b][k] * distance
        z_tilde = [[encode(self.target, observations[b, 0], draw) for draw in draws.cycle[b]] for b in range(B)]
        if self.M:
            pairs = [(b, m) for b in range(B) for m in range(self.M)]
            along_virtual = self.cycle_losses(
                [z[b] for b, _ in pairs], [draws.virtual[b][m] for b, m in pairs], [z_tilde[b][m] for b, m in pairs]
            )
            for (b, _), loss in zip(pairs, along_virtual, strict=True):
                found["cyc"][b] = found["cyc"][b] + loss / self.M
        if o.real_cycle:
            along_recorded = self.cycle_losses(z, actions, [z_tilde[b][self.M] for b in range(B)])
            found["cyc"] = [cyc + loss for cyc, loss in zip(found["cyc"], along_recorded, strict=True)]
        found["cyc"] = [mask[b][0] * found["cyc"][b] for b in range(B)]
        if o.backward_prediction:  # from s_{t+K} back to s_t, where all of them belong to the episode
            z_last = [encode(self.w, observations[b, o.K], draws.last[b]) for b in range(B)]
            z_back = self.way_back(torch.stack(z_last), actions)
            found["backward_pred"] = [torch.zeros((), dtype=z[0].dtype) for _ in range(B)]
            for b in range(B):
                for k in range(o.K):
                    z_tilde = encode(self.target, observations[b, k], draws.past[b][k])
                    distance = cosine(prediction(self.w, z_back[k][b]), projection(self.target, z_tilde))
                    found["backward_pred"][b] = found["backward_pred"][b] + mask[b][o.K] * distance
        return found

    def update(
        self, batch: RainbowBatch, draws: Draws, lambda_cyc: float, target_due: bool
    ) -> tuple[dict[str, float], list[float]]:
        """One update; its metrics under the agent's names, and the new priorities."""
        B = len(batch.returns)
        losses = self.losses(batch, draws)
        total = torch.zeros((), dtype=torch.float64)
        for b in range(B):
            sample = losses["rl"][b] + self.o.lambda_pred * losses["pred"][b] + lambda_cyc * losses["cyc"][b]
            if "backward_pred" in losses:
                sample = sample + self.o.lambda_pred * losses["backward_pred"][b]
            total = total + float(batch.weights[b]) * sample / B
        learning = {name: p for name, p in self.w.items() if p.requires_grad}
        gradients = dict(
            zip(learning, torch.autograd.grad(total, [*learning.values()], allow_unused=True), strict=True)
        )
        metrics = {"loss": float(total.detach())}
        for name in [name for name in ("rl", "pred", "backward_pred", "cyc") if name in losses]:
            metrics[f"loss_{name}"] = sum(float(one.detach()) for one in losses[name]) / B
        if self.o.K:
            pairs = [float(cosine(one, other)) for one in losses["next_target"] for other in losses["next_target"]]
            metrics["target_spread"] = sum(pairs) / len(pairs) / 2
        metrics |= {"q": sum(losses["q"]) / B, "q_min": min(losses["q"]), "q_max": max(losses["q"])}
        groups = {"stem": ("encoder.", "head."), "dm": (MODELS["h"],), "bdm": (MODELS["b"],)}
        factor = dict.fromkeys(learning, 1.0)  # of the gradients; the prediction head is in no group
        for group, prefixes in groups.items():
            own = [name for name in learning if name.startswith(prefixes)]
            if own:
                norm = math.sqrt(sum(float(g.square().sum()) for name in own if (g := gradients[name]) is not None))
                metrics[f"grad_norm_{group}"] = norm
                factor |= dict.fromkeys(own, min(1.0, self.c.max_grad_norm / (norm + 1e-6)))
        if target_due and self.c.target_moment == "before-step":
            self.update_target(draws.noise)
        self.steps += 1
        for name, p in learning.items():
            g = gradients[name]
            if g is not None:
                self.adam(name, p, factor[name] * g)
        if target_due and self.c.target_moment == "after-step":
            self.update_target(draws.noise)
        return metrics, losses["priority"]

    @torch.no_grad()
    def adam(self, name: str, p: Tensor, gradient: Tensor) -> None:
        """Kingma and Ba's Algorithm 1."""
        beta1, beta2 = self.c.adam_beta1, self.c.adam_beta2
        m, v = self.moments.get(name, (torch.zeros_like(p), torch.zeros_like(p)))
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        self.moments[name] = m, v
        m_hat, v_hat = m / (1 - beta1**self.steps), v / (1 - beta2**self.steps)
        p -= self.c.learning_rate * m_hat / (v_hat.sqrt() + self.c.adam_eps)

    @torch.no_grad()
    def update_target(self, noise: Weights) -> None:
        """target ← (1 − τ)·target + τ·online; the noise is copied."""
        tau = self.c.target_tau
        for name, value in self.target.items():
            self.target[name] = noise[name] if "noise" in name else (1 - tau) * value + tau * self.w[name]
