"""The continuous agent: SAC with SPR's prediction and PlayVirtual's cycle over virtual trajectories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from playvirtual.agents.convolution import block_side
from playvirtual.agents.descent import Descent, load_adam
from playvirtual.agents.observations import as_images
from playvirtual.agents.sac_auxiliary import Auxiliary, AuxiliaryDraws
from playvirtual.agents.sac_losses import (
    actor_loss,
    critic_loss,
    soft_target,
    squashed_gaussian,
    temperature_loss,
)
from playvirtual.agents.sac_networks import Actor, Convolutions, Critic, Encoder
from playvirtual.agents.schedule import Schedule
from playvirtual.agents.targets import follow, target_of
from playvirtual.config import ObjectiveConfig, SacConfig
from playvirtual.method import BoxActions
from playvirtual.replay import Crop
from playvirtual.replay.transitions import Experience, Transitions, Windows


class Due(NamedTuple):
    """What one update moves beside the critic and the auxiliary objective."""

    actor: bool
    critic_target: bool
    momentum: bool


class Draws(NamedTuple):
    """All random numbers of one update, so that the losses are a pure function of batch and draws."""

    crops: Tensor  # (B, 2) offsets for s_t
    next_crops: Tensor  # (B, 2) offsets for s_{t+1}
    noise: Tensor  # (B, A) of the actor's action in s_t
    next_noise: Tensor  # (B, A) of its action in s_{t+1}
    auxiliary: AuxiliaryDraws | None


class Sac:
    """Acts by a squashed Gaussian policy and learns off-policy; `update` never waits for the device.

    Critic, auxiliary objective and actor are updated one after the other, each by its own Adam; the encoder
    belongs to the critic and is trained by the first two.
    """

    def __init__(
        self,
        config: SacConfig,
        objective: ObjectiveConfig,
        observation_shape: tuple[int, int, int],
        actions: int,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        bf16: bool = False,
    ) -> None:
        """`actions` is the number of action dimensions, each in [−1, 1]."""
        self.config, self.objective, self.device = config, objective, torch.device(device)
        self.generator, self.bf16 = generator, bf16
        self.actions = BoxActions((-1.0,) * actions, (1.0,) * actions)
        self.target_entropy = -float(actions)
        self.observation_shape = observation_shape
        c, (channels, image_size, _) = config, observation_shape
        convs = Convolutions((channels, c.crop_size, c.crop_size), c.channels, c.filters, c.strides)
        block = block_side(convs.layers[0], (channels, c.crop_size, c.crop_size), self.device)
        self.augment = Crop(image_size, c.crop_size, 0.0, block)  # the RL losses see random crops alone
        encoder = Encoder(convs, c.latent, tanh=c.encoder_tanh)
        self.critic = Critic(encoder, c.latent, actions, c.hidden).to(self.device)
        self.encoder = self.critic.encoder
        limits = (c.log_std_min, c.log_std_max)
        self.actor = Actor(convs.size, c.latent, actions, c.hidden, limits, tanh=c.encoder_tanh)
        self.actor.to(self.device)
        self.target_critic = target_of(self.critic)
        self.auxiliary: Auxiliary | None = None
        if objective.K:
            self.auxiliary = Auxiliary(c, objective, self.encoder, self.actions, self.augment, self.device)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(c.initial_temperature), device=self.device))

        self.optimizers = self._optimizers()
        self._descents = self._make_descents()
        self.phases = math.lcm(c.actor_period, c.critic_target_period, c.momentum_period)
        self._kinds: dict[Due, int] = {}
        self._critic_losses, self._actor_losses = self.critic_losses, self.actor_losses
        self._auxiliary_losses = self.auxiliary_losses

    def _optimizers(self) -> dict[str, torch.optim.Adam]:
        c = self.config

        def adam(parameters: Sequence[nn.Parameter], rate: float, beta1: float) -> torch.optim.Adam:
            return torch.optim.Adam(
                parameters,
                lr=rate,
                betas=(beta1, c.adam_beta2),
                eps=c.adam_eps,
                fused=True,
                capturable=self.device.type == "cuda",
            )

        optimizers = {
            "critic": adam([p for p in self.critic.parameters() if p.requires_grad], c.learning_rate, c.adam_beta1),
            "actor": adam([*self.actor.parameters()], c.learning_rate, c.adam_beta1),
            "temperature": adam([self.log_alpha], c.temperature_learning_rate, c.temperature_beta1),
        }
        if self.auxiliary is not None:
            encoder, rate = [*self.encoder.parameters()], c.auxiliary_learning_rate
            learned = [*encoder, *self.auxiliary.online.parameters()]
            optimizers["auxiliary"] = adam(learned, rate, c.adam_beta1)
            if c.separate_encoder_optimizer:
                optimizers["encoder"] = adam(encoder, rate, c.adam_beta1)
        return optimizers

    def _make_descents(self) -> dict[str, Descent]:
        """A step of each optimiser whose gradients' norm is recorded; the auxiliary one's is limited as well."""
        limits = {"critic": math.inf, "actor": math.inf}
        if self.auxiliary is not None and "encoder" not in self.optimizers:
            limits["auxiliary"] = self.config.max_grad_norm
        return {
            name: Descent(self.optimizers[name], {name: self._parameters(name)}, limit)
            for name, limit in limits.items()
        }

    @torch.no_grad()
    def act(self, observation: Tensor | npt.NDArray[np.uint8], explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…, A): the mean action or, to explore, a draw from the policy."""
        images = as_images(observation, self.observation_shape, self.device)
        single = images.dim() == 3
        x = self.augment.centre(images.reshape(-1, *images.shape[-3:]))
        mean, log_std = self.actor(self.encoder.convs(x))
        if explore:
            noise = torch.randn(mean.shape, generator=self.generator, device=self.device)
            mean = mean + log_std.exp() * noise
        action = torch.tanh(mean)
        return action[0] if single else action

    @torch.no_grad()
    def latents(self, observation: Tensor | npt.NDArray[np.uint8]) -> Tensor:
        """(N, C, H, W) uint8 observations -> (N, D): f(s) of the pictures' centres."""
        z: Tensor = self.encoder(self.augment.centre(as_images(observation, self.observation_shape, self.device)))
        return z

    @property
    def dynamics(self) -> nn.Module | None:
        """h, where there is prediction."""
        return self.auxiliary.dm if self.auxiliary is not None else None

    def draw(self, batch: Experience) -> Draws:
        """All random numbers of one update, from this agent's own generator."""
        B, A = batch.transitions.actions.shape
        crops, _ = self.augment.draw(2 * B, self.device, self.generator)
        noise = torch.randn((2 * B, A), generator=self.generator, device=self.device)
        auxiliary = None
        if self.auxiliary is not None and batch.windows is not None:
            auxiliary = self.auxiliary.draw(batch.windows, self.generator)
        return Draws(crops[:B], crops[B:], noise[:B], noise[B:], auxiliary)

    def critic_losses(self, batch: Transitions, draws: Draws) -> dict[str, Tensor]:
        """critic: both squared errors against the soft target, (B,); beside it that target and q."""
        # With gradient first: autocast keeps its casts of the weights, and those made without one have none.
        q1, q2 = self.critic(self.augment.crop(batch.observations, draws.crops), batch.actions)
        with torch.no_grad():
            images = self.augment.crop(batch.next_observations, draws.next_crops)
            mean, log_std = self.actor(self.encoder.convs(images))
            action, log_prob = squashed_gaussian(mean, log_std, draws.next_noise)
            next_q1, next_q2 = self.target_critic(images, action)
            alpha = self.log_alpha.exp()
            target = soft_target(batch.rewards, batch.discounts, next_q1, next_q2, log_prob, alpha)
        return {"critic": critic_loss(q1, q2, target), "target": target, "q": torch.minimum(q1, q2).detach()}

    def actor_losses(self, batch: Transitions, draws: Draws) -> dict[str, Tensor]:
        """actor and alpha, (B,); beside them log_prob. The convolutions' features are taken as they are."""
        with torch.no_grad():  # one pass serves the actor and the critic
            features = self.encoder.convs(self.augment.crop(batch.observations, draws.crops))
            z = self.encoder.latent(features)
        mean, log_std = self.actor(features)
        action, log_prob = squashed_gaussian(mean, log_std, draws.noise)
        q1, q2 = self.critic.q(z, action)
        return {
            "actor": actor_loss(q1, q2, log_prob, self.log_alpha.detach().exp()),
            "alpha": temperature_loss(self.log_alpha, log_prob.detach(), self.target_entropy),
            "log_prob": log_prob.detach(),
        }

    def auxiliary_losses(self, windows: Windows, draws: AuxiliaryDraws) -> dict[str, Tensor]:
        """pred and cyc, (B,)."""
        assert self.auxiliary is not None
        return self.auxiliary.losses(self.encoder, windows, draws)

    def kind(self, update: int) -> int:
        """The phase that stands for all updates which do the same work as this one."""
        due = self._due(update)
        if due not in self._kinds:
            self._kinds[due] = next(first for first in range(self.phases) if self._due(first) == due)
        return self._kinds[due]

    def _due(self, phase: int) -> Due:
        c = self.config
        return Due(phase % c.actor_period == 0, phase % c.critic_target_period == 0, phase % c.momentum_period == 0)

    def update(self, batch: Experience, schedule: Schedule) -> dict[str, Tensor]:
        """One update of everything that `schedule.phase` says is due. Returns detached metrics."""
        draws, due = self.draw(batch), self._due(schedule.phase)
        metrics = self.update_critic(batch.transitions, draws)
        if batch.windows is not None and draws.auxiliary is not None:
            metrics |= self.update_auxiliary(batch.windows, draws.auxiliary, schedule)
        if due.actor:
            metrics |= self.update_actor(batch.transitions, draws)
        self.update_targets(critic=due.critic_target, momentum=due.momentum)
        return {name: value.detach() for name, value in metrics.items()}

    def update_critic(self, batch: Transitions, draws: Draws) -> dict[str, Tensor]:
        """One step of critic and encoder on the soft Bellman error."""
        with self._autocast():
            losses = self._critic_losses(batch, draws)
        loss = losses["critic"].mean()
        self._set_gradients(loss, "critic")
        norm = self._descents["critic"].step()["critic"]
        low, high = losses["q"].aminmax()
        q = {"q": losses["q"].mean(), "q_min": low, "q_max": high}
        return {"loss_critic": loss, **q, "grad_norm_critic": norm}

    def update_actor(self, batch: Transitions, draws: Draws) -> dict[str, Tensor]:
        """One step of actor and temperature."""
        with self._autocast():
            losses = self._actor_losses(batch, draws)
        loss, loss_alpha = losses["actor"].mean(), losses["alpha"].mean()
        metrics = {"loss_actor": loss, "loss_alpha": loss_alpha, "entropy": -losses["log_prob"].mean()}
        # One backward pass for both: neither loss has a gradient for the other's parameters.
        self._set_gradients(loss + loss_alpha, "actor", "temperature")
        metrics["grad_norm_actor"] = self._descents["actor"].step()["actor"]
        self.optimizers["temperature"].step()
        return {**metrics, "alpha": self.log_alpha.exp()}

    def update_auxiliary(self, windows: Windows, draws: AuxiliaryDraws, schedule: Schedule) -> dict[str, Tensor]:
        """One step of encoder, dynamics models and heads on λ_pred · L_pred + λ_cyc · L_cyc."""
        assert self.auxiliary is not None
        with self._autocast():
            losses = self._auxiliary_losses(windows, draws)
        pred, cyc = losses["pred"].mean(), losses["cyc"].mean()
        loss = self.objective.lambda_pred * pred + schedule.lambda_cyc * cyc
        self._set_gradients(loss, "auxiliary")
        if "encoder" in self.optimizers:  # its gradient is limited by itself, then with the others', and used twice
            everything = self._parameters("auxiliary")
            nn.utils.clip_grad_norm_(self._parameters("encoder"), self.config.max_grad_norm)
            norm = nn.utils.clip_grad_norm_(everything, self.config.max_grad_norm)
            self.optimizers["encoder"].step()
            self.optimizers["auxiliary"].step()
        else:
            norm = self._descents["auxiliary"].step()["auxiliary"]
        return {"loss_pred": pred, "loss_cyc": cyc, "loss_auxiliary": loss, "grad_norm_auxiliary": norm}

    def update_targets(self, *, critic: bool, momentum: bool) -> None:
        """Lets the target critic, and the momentum encoder and projection, follow the online networks."""
        if critic:
            follow(self.target_critic.q1, self.critic.q1, 1.0 - self.config.q_tau)
            follow(self.target_critic.q2, self.critic.q2, 1.0 - self.config.q_tau)
            follow(self.target_critic.encoder, self.encoder, 1.0 - self.config.encoder_tau)
        if momentum and self.auxiliary is not None:
            self.auxiliary.update_momentum(self.encoder)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def _set_gradients(self, loss: Tensor, *names: str) -> None:
        """Gives the parameters of the named optimisers, and no others, the gradient of `loss`."""
        for name in names:
            self.optimizers[name].zero_grad(set_to_none=True)
        loss.backward(inputs=[p for name in names for p in self._parameters(name)])

    def _parameters(self, name: str) -> list[nn.Parameter]:
        return [p for group in self.optimizers[name].param_groups for p in group["params"]]

    def compile(self) -> None:
        """Replaces the losses by their compiled versions; the first updates then take a minute."""
        self._critic_losses = torch.compile(self.critic_losses)
        self._actor_losses = torch.compile(self.actor_losses)
        self._auxiliary_losses = torch.compile(self.auxiliary_losses)

    def modules(self) -> dict[str, nn.Module]:
        """Every network by its name; the encoder is the critic's."""
        modules: dict[str, nn.Module] = {
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
        }
        if self.auxiliary is not None:
            modules |= {"auxiliary": self.auxiliary.online, "momentum": self.auxiliary.momentum}
        return modules

    def freeze_encoder(self) -> None:
        """Takes the encoder out of training, before the first update; needs K = 0.

        The actor's own latent layer on the encoder's convolutions goes on learning.
        """
        assert self.auxiliary is None
        self.encoder.requires_grad_(False)
        self.optimizers = self._optimizers()
        self._descents = self._make_descents()

    def encoder_weights(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """The encoder's part of what `state_dict` gave."""
        return {k.removeprefix("encoder."): v for k, v in state["critic"].items() if k.startswith("encoder.")}

    def load_encoder(self, weights: Mapping[str, Tensor]) -> None:
        """Gives the encoder and its target the weights of another agent's."""
        for module in (self.encoder, self.target_critic.encoder):
            module.load_state_dict(weights)

    def parameter_count(self) -> int:
        """Trainable parameters, each counted once."""
        return 1 + sum(p.numel() for m in self.modules().values() for p in m.parameters() if p.requires_grad)

    def weights(self) -> dict[str, Tensor]:
        """What acting needs: convolutions and actor."""
        parts = {"convs": self.encoder.convs, "actor": self.actor}
        return {f"{part}.{k}": v for part, module in parts.items() for k, v in module.state_dict().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over what `weights` gave, for acting."""
        for part, module in {"convs": self.encoder.convs, "actor": self.actor}.items():
            prefix = f"{part}."
            mine = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            module.load_state_dict(mine)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes: networks, targets, temperature, optimisers."""
        return {
            **{name: module.state_dict() for name, module in self.modules().items()},
            "log_alpha": self.log_alpha.detach(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        for name, module in self.modules().items():
            module.load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        for name, optimizer in self.optimizers.items():
            load_adam(optimizer, state["optimizers"][name])
