"""The discrete agent: Rainbow with SPR's prediction and PlayVirtual's cycle over virtual trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from playvirtual.agents.convolution import block_side
from playvirtual.agents.cycles import cycle_loss, virtual_trajectories
from playvirtual.agents.descent import Descent, load_adam
from playvirtual.agents.observations import as_images
from playvirtual.agents.rainbow_losses import categorical_loss, project_distribution
from playvirtual.agents.rainbow_networks import DuelingHead, Encoder
from playvirtual.agents.schedule import Schedule
from playvirtual.agents.targets import follow, target_of
from playvirtual.config import ObjectiveConfig, RainbowConfig, copies
from playvirtual.method import (
    ConvDynamics,
    DenseDynamics,
    DiscreteActions,
    cosine_distance,
    prediction_loss,
    rollout,
    total_objective,
)
from playvirtual.replay import Augmentation, ImageDraws
from playvirtual.replay.sequences import Sequences


class Draws(NamedTuple):
    """All random numbers of one update but the noisy layers', so that the losses are a pure function of them."""

    online: ImageDraws  # for s_t through the online encoder, (B,)
    choice: ImageDraws  # for s_{t+n}, which the online network chooses the action in, (B,)
    target: ImageDraws  # for everything the target encoder sees, (B + B·K + B·views,)
    virtual: Tensor  # (B, M, K) virtual actions


class Rainbow:
    """Acts by noisy dueling C51 and learns from prioritised sequences; `update` never waits for the device."""

    def __init__(
        self,
        config: RainbowConfig,
        objective: ObjectiveConfig,
        observation_shape: tuple[int, int, int],
        actions: int,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        bf16: bool = False,
    ) -> None:
        self.config, self.objective, self.device = config, objective, torch.device(device)
        self.generator, self.bf16 = generator, bf16
        self.observation_shape = observation_shape
        self.actions = DiscreteActions(actions)
        self.K = objective.K
        self.M = copies(objective.M, actions) if self.K else 0
        self.views = (self.M + objective.real_cycle) if self.K else 0  # augmented views of s_t to come back to

        c = config
        self.encoder = Encoder(observation_shape, c.channels, c.filters, c.strides, c.latent)
        block = block_side(self.encoder.convs[0], observation_shape, self.device)
        self.augment = Augmentation(c.shift_pad, c.intensity_scale, block)
        self.head = DuelingHead(self.encoder.size, actions, c.hidden, c.atoms, c.noisy_sigma)
        self.online = nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        if self.K:
            self.online["predictor"] = nn.Linear(2 * c.hidden, 2 * c.hidden)
            self.online["dm"] = self._dynamics()
        if self.views:
            self.online["bdm"] = self._dynamics()
        self.online.to(self.device)
        self.target_encoder, self.target_head = target_of(self.encoder), target_of(self.head)
        self.virtual = None
        if self.views:
            self.virtual = virtual_trajectories(
                objective,
                forward=self.online["dm"],
                backward=self.online["bdm"],
                actions=self.actions,
                copies=self.M,
                projector=self.head.project,
                predictor=self.online["predictor"],
                target_projector=self.target_head.project,
            )

        self.support = torch.linspace(-c.v_max, c.v_max, c.atoms, device=self.device)
        self.optimizer = self._adam()
        # Norms are limited part by part; the prediction head q is left alone.
        self.clipped: dict[str, list[nn.Parameter]] = {
            "stem": [*self.encoder.parameters(), *self.head.parameters()],
            **{name: [*self.online[name].parameters()] for name in ("dm", "bdm") if name in self.online},
        }
        self._descent = Descent(self.optimizer, self.clipped, c.max_grad_norm)
        self.phases = c.target_period  # the last of so many updates is followed by the target
        self._objective = self.mean_objective

    def _adam(self) -> torch.optim.Adam:
        c = self.config
        return torch.optim.Adam(
            [p for p in self.online.parameters() if p.requires_grad],
            lr=c.learning_rate,
            betas=(c.adam_beta1, c.adam_beta2),
            eps=c.adam_eps,
            fused=True,
            capturable=self.device.type == "cuda",
        )

    def _dynamics(self) -> nn.Module:
        if self.config.latent:
            return DenseDynamics(self.config.latent, self.actions, self.config.dynamics_hidden, rescaled=True)
        return ConvDynamics(self.encoder.map_shape[0], self.actions)

    @torch.no_grad()
    def act(self, observation: Tensor | npt.NDArray[np.uint8], explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…) actions; exploration is the noise of the head's layers."""
        images = as_images(observation, self.observation_shape, self.device)
        single = images.dim() == 3
        action = self.values(images.reshape(-1, *images.shape[-3:]), explore).argmax(1)
        return action[0] if single else action

    @torch.no_grad()
    def values(self, observation: Tensor | npt.NDArray[np.uint8], explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…, |A|): what each action is expected to return."""
        images = as_images(observation, self.observation_shape, self.device)
        flat = self.q_values(self.head(self.latents(images.reshape(-1, *images.shape[-3:])), noisy=explore))
        return flat.reshape(*images.shape[:-3], flat.shape[-1])

    @torch.no_grad()
    def latents(self, observation: Tensor | npt.NDArray[np.uint8]) -> Tensor:
        """(N, C, H, W) uint8 observations -> (N, …): f(s), the pictures as they are."""
        images = as_images(observation, self.observation_shape, self.device)
        z: Tensor = self.encoder(images.to(torch.get_default_dtype()) / 255.0)
        return z

    @property
    def dynamics(self) -> nn.Module | None:
        """h, where there is prediction."""
        return self.online["dm"] if self.K else None

    def q_values(self, logits: Tensor) -> Tensor:
        """(N, |A|, atoms) -> (N, |A|): the expectation of the return."""
        return (logits.softmax(-1) * self.support).sum(-1)  # not a matrix product: those may run in low precision

    def draw(self, batch: Sequences) -> Draws:
        """All random numbers of one update, from this agent's own generator."""
        B = len(batch.positions)
        parts = [B, B, B * (1 + self.K + self.views)]
        offsets, noise = self.augment.draw(sum(parts), self.device, self.generator)
        images = list(zip(offsets.split(parts), noise.split(parts), strict=True))
        virtual = torch.zeros((B, 0, 0), dtype=torch.int64, device=self.device)
        if self.virtual is not None and self.M:
            virtual = self.virtual.draw(B, self.device, self.generator, batch.actions)
        return Draws(images[0], images[1], images[2], virtual)

    def losses(self, batch: Sequences, draws: Draws) -> dict[str, Tensor]:
        """Per-sample losses (B,) named like their weights: rl, pred, cyc; beside them priority and q."""
        B, K = len(batch.positions), self.K
        z = self.encoder(self.augment(batch.observations[:, 0], draws.online))  # (B, …): z_t
        with torch.no_grad():
            z_next, future, home = self._targets(batch, draws)
            choice = self.encoder(self.augment(batch.next_observations, draws.choice))
        logits, next_logits = self.head(torch.cat([z, choice])).split(B)  # (B, |A|, atoms)
        with torch.no_grad():
            best = self.q_values(next_logits).argmax(1)  # (B,): double DQN
            next_probabilities = select(self.target_head(z_next).softmax(-1), best)  # (B, atoms)
            target = project_distribution(batch.returns, batch.discounts, next_probabilities, self.support)
        rl = categorical_loss(select(logits, batch.actions[:, 0]).log_softmax(-1), target)
        zero = torch.zeros_like(rl.loss)
        losses = {"rl": rl.loss, "pred": zero, "cyc": zero, "priority": rl.priority}
        losses["q"] = self.q_values(logits.detach()).amax(1)
        if not K:
            return losses
        ahead = None
        if self.virtual is None:
            z_hat = rollout(self.online["dm"], z, batch.actions)  # (B, K, …): Eq. 1
        else:
            z_hat, ahead = self.virtual.foresee(z, batch.actions, draws.virtual)
        prediction = self.online["predictor"](self.head.project(z_hat.flatten(0, 1))).unflatten(0, (B, K))
        losses["pred"] = prediction_loss(prediction, future, cosine_distance, batch.alive[:, 1:])  # Eq. 2
        if self.virtual is not None:
            cyc = cycle_loss(self.virtual, z, home, draws.virtual, ahead, (batch.actions, z_hat))
            losses["cyc"] = cyc * batch.alive[:, 0]
        return losses

    def _targets(self, batch: Sequences, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """What the target network makes of the batch, by one pass of its encoder and one of its projection.

        z̃_{t+n} (B, …); g_m(z̃) of s_{t+1} … s_{t+K} (B, K, D); of the views of s_t, that cycles come back to, in their
        metric (B, views, D).
        """
        B = len(batch.positions)
        # Where each picture is found in: s_t … s_{t+K} of every sequence, then s_{t+n}.
        steps = batch.observations.shape[1]
        number = torch.arange(B * (steps + 1), device=self.device)
        sequences, ahead = number[: B * steps].view(B, steps), number[B * steps :]
        source = torch.cat([ahead, sequences[:, 1:].flatten(), sequences[:, 0].repeat_interleave(self.views)])
        pictures = torch.cat([batch.observations.flatten(0, 1), batch.next_observations])
        images = self.augment(pictures, draws.target, source)
        z_next, z_tilde = self.target_encoder(images).split([B, B * (self.K + self.views)])
        if not self.K:
            return z_next, z_tilde, z_tilde
        if self.objective.metric == "projection":
            future, home = self.target_head.project(z_tilde).split([B * self.K, B * self.views])
        else:
            future, home = self.target_head.project(z_tilde[: B * self.K]), z_tilde[B * self.K :].flatten(1)
        return z_next, future.unflatten(0, (B, self.K)), home.unflatten(0, (B, self.views))

    def mean_objective(self, batch: Sequences, draws: Draws, lambda_cyc: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 5 as the weighted mean over the batch, and what is recorded of it; a pure function, compiled as one."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            losses = self.losses(batch, draws)
        total = total_objective(losses["rl"], losses["pred"], losses["cyc"], self.objective.lambda_pred, lambda_cyc)
        means = {f"loss_{name}": losses[name].detach().mean() for name in ("rl", "pred", "cyc")}
        return (batch.weight * total).mean(), {**means, **_spread(losses["q"]), "priority": losses["priority"]}

    def kind(self, update: int) -> int:
        """The phase that stands for all updates which do the same work as this one."""
        last = self.phases - 1
        return last if update % self.phases == last else 0

    def update(self, batch: Sequences, schedule: Schedule) -> dict[str, Tensor]:
        """One optimiser step on `batch`. Returns detached metrics; `priority` (B,) goes back to the replay."""
        self.head.resample(self.generator)
        loss, metrics = self._objective(batch, self.draw(batch), schedule.lambda_cyc)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        follows = schedule.phase == self.phases - 1
        if follows and self.config.target_moment == "before-step":
            self.update_target()
        norms = self._descent.step()
        if follows and self.config.target_moment == "after-step":
            self.update_target()
        return {"loss": loss.detach(), **metrics, **{f"grad_norm_{part}": norm for part, norm in norms.items()}}

    def update_target(self) -> None:
        """Lets the target networks follow the online ones."""
        follow(self.target_encoder, self.encoder, self.config.target_tau)
        follow(self.target_head, self.head, self.config.target_tau)

    def compile(self) -> None:
        """Replaces the objective by its compiled version; the first update then takes a minute."""
        self._objective = torch.compile(self.mean_objective)

    def freeze_encoder(self) -> None:
        """Takes the encoder out of training, before the first update."""
        self.encoder.requires_grad_(False)
        self.clipped["stem"] = [*self.head.parameters()]
        self.optimizer = self._adam()
        self._descent = Descent(self.optimizer, self.clipped, self.config.max_grad_norm)

    def encoder_weights(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """The encoder's part of what `state_dict` gave."""
        return {k.removeprefix("encoder."): v for k, v in state["online"].items() if k.startswith("encoder.")}

    def load_encoder(self, weights: Mapping[str, Tensor]) -> None:
        """Gives the encoder and its target the weights of another agent's."""
        for module in (self.encoder, self.target_encoder):
            module.load_state_dict(weights)

    def parameter_count(self) -> int:
        """Trainable parameters."""
        return sum(p.numel() for p in self.online.parameters() if p.requires_grad)

    def weights(self) -> dict[str, Tensor]:
        """What acting needs: encoder and head."""
        parts = {"encoder": self.encoder, "head": self.head}
        return {f"{part}.{k}": v for part, module in parts.items() for k, v in module.state_dict().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over what `weights` gave, for acting."""
        for part, module in {"encoder": self.encoder, "head": self.head}.items():
            prefix = f"{part}."
            module.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes: networks, targets, optimiser."""
        return {
            "online": self.online.state_dict(),
            "target_encoder": self.target_encoder.state_dict(),
            "target_head": self.target_head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.online.load_state_dict(state["online"])
        self.target_encoder.load_state_dict(state["target_encoder"])
        self.target_head.load_state_dict(state["target_head"])
        load_adam(self.optimizer, state["optimizer"])


def _spread(q: Tensor) -> dict[str, Tensor]:
    """Mean and range over a batch (B,) of values."""
    low, high = q.aminmax()
    return {"q": q.mean(), "q_min": low, "q_max": high}


def select(values: Tensor, actions: Tensor) -> Tensor:
    """(B, |A|, X) values and (B,) actions -> (B, X): the row of the action taken."""
    return values.gather(1, actions[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]
