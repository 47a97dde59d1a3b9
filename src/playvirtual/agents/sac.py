"""The continuous agent: SAC with SPR's prediction and PlayVirtual's cycles over virtual trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Agent, Every, Observations, Schedule, Update, UpdatePattern, as_images
from playvirtual.agents.auxiliary import has_backward_model, lambda_cyc_schedule, make_objective
from playvirtual.agents.losses import (
    actor_loss,
    critic_loss,
    mean_and_range,
    soft_target,
    squashed_gaussian,
    temperature_loss,
)
from playvirtual.agents.networks.sac import Actor, Convolutions, Critic, SacEncoder, Temperature
from playvirtual.agents.optim import load_adam, make_adam
from playvirtual.config.schema import Config, SacConfig
from playvirtual.errors import InputError
from playvirtual.kernels.adam import ClippedAdam
from playvirtual.kernels.convolution import space_to_depth_size
from playvirtual.method import (
    ActionSpace,
    BoxActions,
    DenseDynamics,
    ProjectionHead,
    RandomInputs,
    SelfPrediction,
)
from playvirtual.method.target_network import make_target, soft_update
from playvirtual.replay.augmentation import RandomCrop, RandomShift
from playvirtual.replay.batches import SacBatch, SequenceBatch, TransitionBatch
from playvirtual.replay.buffer import ReplayBuffer
from playvirtual.replay.samplers import UniformSampler


class SacRandoms(NamedTuple):
    """All random numbers of one update, so that the losses are a pure function of batch and randoms."""

    offsets: Tensor  # (B, 2) of the crops of s_t
    next_offsets: Tensor  # (B, 2) of the crops of s_{t+1}
    noise: Tensor  # (B, A) of the actor's action in s_t
    next_noise: Tensor  # (B, A) of its action in s_{t+1}
    auxiliary: RandomInputs | None


class Sac:
    """Acts by a squashed Gaussian policy and learns off-policy.

    Critic, auxiliary objective and actor are updated one after the other, each by its own Adam; the encoder
    belongs to the critic and is trained by the first two.
    """

    policy_parts = ("convolutions", "actor")

    def __init__(
        self,
        config: Config,
        observation_shape: tuple[int, int, int],
        action_space: ActionSpace,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        bf16: bool = False,
    ) -> None:
        """Actions are vectors whose every dimension lies in [−1, 1]."""
        assert isinstance(config.agent, SacConfig)
        assert isinstance(action_space, BoxActions)
        c = self.config = config.agent
        if {*action_space.low} != {-1.0} or {*action_space.high} != {1.0}:
            raise InputError(
                f"task: the actions of {config.task!r} lie between {action_space.low} and {action_space.high}; "
                "allowed: −1 and 1 in every dimension, the range of SAC's policy"
            )
        self.device, self.generator, self.bf16 = torch.device(device), generator, bf16
        self.observation_shape, self.action_space = observation_shape, action_space
        self.target_entropy = -float(action_space.size)
        self._make_networks(config)
        self.optimizers = self._make_optimizers()
        self.clipped_adams = self._make_clipped_adams()
        self.update_pattern = UpdatePattern(
            actor=Every(c.actor_period), critic_target=Every(c.critic_target_period), momentum=Every(c.momentum_period)
        )
        self.schedules: Mapping[str, Callable[[int], float]] = {"lambda_cyc": lambda_cyc_schedule(config.objective)}
        self._mean_critic_loss, self._mean_actor_loss = self.mean_critic_loss, self.mean_actor_loss
        self._mean_auxiliary_loss = self.mean_auxiliary_loss

    def _make_networks(self, config: Config) -> None:
        """Critic with encoder, actor on its convolutions, target critic, temperature and, for K > 0, the objective."""
        c, dims = self.config, self.action_space.size
        channels, image_size, _ = self.observation_shape
        crop_shape = (channels, c.crop_size, c.crop_size)
        convs = Convolutions(crop_shape, c.channels, c.kernel_sizes, c.strides)
        block = space_to_depth_size(convs.layers[0], crop_shape, self.device)
        self.augment = self._make_augment(image_size, block)
        self.critic = Critic(SacEncoder(convs, c.latent, tanh=c.encoder_tanh), c.latent, dims, c.hidden).to(self.device)
        self.encoder = self.critic.encoder
        limits = (c.log_std_min, c.log_std_max)
        self.actor = Actor(convs.size, c.latent, dims, c.hidden, limits, tanh=c.encoder_tanh).to(self.device)
        self.encoder.requires_grad_(not config.encoder_from)  # a pretrained encoder is kept as it is
        self.target_critic = make_target(self.critic)
        self.objective: SelfPrediction | None = None
        self.auxiliary, self.momentum = nn.ModuleDict(), nn.ModuleDict()
        if config.objective.K:
            self.objective = self._make_objective(config)
        self.temperature = Temperature(c.initial_temperature).to(self.device)
        self.log_alpha = self.temperature.log_alpha

    def _make_augment(self, image_size: int, block: int) -> RandomCrop | RandomShift:
        """The RL losses see random crops alone."""
        return RandomCrop(image_size, self.config.crop_size, 0.0, block)

    def _make_objective(self, config: Config) -> SelfPrediction:
        """h, b, g, q and the momentum networks f_m, g_m beside the critic's encoder f."""
        c, actions = self.config, self.action_space
        forward = DenseDynamics(c.latent, actions, c.dynamics_hidden)
        projector, predictor = (ProjectionHead(c.latent, c.projection_hidden) for _ in range(2))
        target_encoder = make_target(self.encoder)
        independent = c.target_projection == "independent"
        target_projector = make_target(ProjectionHead(c.latent, c.projection_hidden) if independent else projector)
        self.auxiliary.update({"forward_dynamics": forward, "projector": projector, "predictor": predictor})
        backward = None
        if has_backward_model(config.objective, actions):
            backward = self.auxiliary["backward_dynamics"] = DenseDynamics(c.latent, actions, c.dynamics_hidden)
        self.momentum.update({"encoder": target_encoder, "projector": target_projector})
        self.auxiliary.to(self.device)
        self.momentum.to(self.device)
        return make_objective(
            config.objective,
            actions=actions,
            encoder=self.encoder,
            target_encoder=target_encoder,
            augment=replace(self.augment, scale=c.intensity_scale),  # crops and, other than RL's, random intensity
            projector=projector,
            target_projector=target_projector,
            predictor=predictor,
            forward=forward,
            backward=backward,
        )

    def _make_optimizers(self) -> dict[str, torch.optim.Adam]:
        """An Adam each for critic (and encoder), actor, temperature and, for K > 0, the auxiliary objective."""
        c = self.config
        optimizers = {
            "critic": self._adam(self.critic, lr=c.learning_rate),
            "actor": self._adam(self.actor, lr=c.learning_rate),
            "temperature": self._adam(self.temperature, lr=c.temperature_learning_rate, beta1=c.temperature_beta1),
        }
        if self.objective is not None:
            optimizers["auxiliary"] = self._adam(self.encoder, self.auxiliary, lr=c.auxiliary_learning_rate)
            if c.separate_encoder_optimizer:
                optimizers["encoder"] = self._adam(self.encoder, lr=c.auxiliary_learning_rate)
        return optimizers

    def _adam(
        self, *modules: nn.Module, lr: float, beta1: float | None = None, weight_decay: float = 0.0
    ) -> torch.optim.Adam:
        """An Adam with the options' β and ε on the parameters of these modules that learn."""
        c = self.config
        learned = [p for module in modules for p in module.parameters() if p.requires_grad]
        betas = (c.adam_beta1 if beta1 is None else beta1), c.adam_beta2
        return make_adam(
            learned, lr=lr, betas=betas, eps=c.adam_eps, device=self.device, weight_decay=weight_decay
        )  # fmt: skip

    def _make_clipped_adams(self) -> dict[str, ClippedAdam]:
        """The optimizers whose gradients' norm is logged; the auxiliary one's is clipped as well."""
        max_norms = {"critic": math.inf, "actor": math.inf}
        if self.objective is not None and "encoder" not in self.optimizers:
            max_norms["auxiliary"] = self.config.max_grad_norm
        return {
            name: ClippedAdam(self.optimizers[name], {name: self._parameters(name)}, max_norm)
            for name, max_norm in max_norms.items()
        }

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        encoder = {"encoder": self.encoder, "convolutions": self.encoder.convs}
        parts = {**encoder, "actor": self.actor, "critic": self.critic}
        targets = {"target_critic": self.target_critic, "target_encoder": self.target_critic.encoder}
        momentum = {f"momentum_{name}": module for name, module in self.momentum.items()}
        return {**parts, **targets, "temperature": self.temperature, **self.auxiliary, **momentum}

    def make_sampler(self, replay: ReplayBuffer, generator: torch.Generator) -> UniformSampler:
        c = self.config
        return UniformSampler(
            replay,
            generator,
            batch_size=c.batch_size,
            sequence_batch_size=c.auxiliary_batch_size,
            K=self.objective.K if self.objective is not None else 0,
            gamma=c.discount,
        )

    @torch.no_grad()
    def act(self, observation: Observations, explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…, A): the mean action or, to explore, a draw from the policy."""
        images = as_images(observation, self.observation_shape, self.device)
        x = self.augment.center(images.reshape(-1, *images.shape[-3:]))
        mean, log_std = self.actor(self.encoder.convs(x))
        if explore:
            noise = torch.randn(mean.shape, generator=self.generator, device=self.device)
            mean = mean + log_std.exp() * noise
        action = torch.tanh(mean)
        return action.reshape(*images.shape[:-3], action.shape[-1])

    @torch.no_grad()
    def encode(self, observation: Observations) -> Tensor:
        """(N, C, H, W) uint8 observations -> (N, D): f(s) of the images' center crops."""
        z: Tensor = self.encoder(self.augment.center(as_images(observation, self.observation_shape, self.device)))
        return z

    def draw(self, batch: SacBatch) -> SacRandoms:
        """All random numbers of one update, from this agent's own generator."""
        return self.draw_views(batch, views=1, target_views=1)

    def draw_views(self, batch: SacBatch, *, views: int, target_views: int) -> SacRandoms:
        """All random numbers of an update on several views of s_t and s_{t+1}, view after view of the whole batch.

        offsets (views·B, 2), next_offsets (target_views·B, 2), noise (B, A), next_noise (target_views·B, A).
        """
        B, A = batch.transitions.actions.shape
        V, T = views * B, target_views * B
        offsets, _ = self.augment.draw(V + T, self.device, self.generator)
        noise = torch.randn((B + T, A), generator=self.generator, device=self.device)
        auxiliary = None
        if self.objective is not None and batch.sequences is not None:
            auxiliary = self.objective.draw(batch.sequences.actions, self.generator)
        return SacRandoms(offsets[:V], offsets[V:], noise[:B], noise[B:], auxiliary)

    def critic_losses(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """{"critic", "target", "q"}, (B,) each: the sum of both squared errors, the soft target y, min(Q₁, Q₂)."""
        # With gradient first: autocast keeps its casts of the weights, and those made without one have none.
        q1, q2 = self.critic(self.augment.crop(batch.observations, randoms.offsets), batch.actions)
        with torch.no_grad():
            images = self.augment.crop(batch.next_observations, randoms.next_offsets)
            mean, log_std = self.actor(self.encoder.convs(images))
            action, log_prob = squashed_gaussian(mean, log_std, randoms.next_noise)
            next_q1, next_q2 = self.target_critic(images, action)
            alpha = self.log_alpha.exp()
            target = soft_target(batch.rewards, batch.discounts, next_q1, next_q2, log_prob, alpha)
        return {"critic": critic_loss(q1, q2, target), "target": target, "q": torch.minimum(q1, q2).detach()}

    def actor_losses(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """{"actor", "alpha", "log_prob"}, (B,) each; the encoder, which is the critic's, gets no gradient."""
        with torch.no_grad():  # one pass serves the actor and the critic
            features = self.encoder.convs(self.augment.crop(batch.observations, randoms.offsets))
            z = self.encoder.latent(features)
        mean, log_std = self.actor(features)
        action, log_prob = squashed_gaussian(mean, log_std, randoms.noise)
        q1, q2 = self.critic.q(z, action)
        return {
            "actor": actor_loss(q1, q2, log_prob, self.log_alpha.detach().exp()),
            "alpha": temperature_loss(self.log_alpha, log_prob.detach(), self.target_entropy),
            "log_prob": log_prob.detach(),
        }

    def auxiliary_losses(self, sequences: SequenceBatch, inputs: RandomInputs) -> dict[str, Tensor]:
        """The objective's losses by name, (B,) each: "pred", "cyc", and "backward_pred" where that is on.

        Beside them "target_spread", (), is that of the targets.
        """
        assert self.objective is not None
        losses: dict[str, Tensor] = self.objective(
            sequences.observations, sequences.actions, sequences.mask, inputs=inputs
        )
        return losses

    # Metrics are means of losses without gradient: the backward pass of what is compiled would begin at them as well.

    def mean_critic_loss(self, batch: TransitionBatch, randoms: SacRandoms) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss as the mean over the batch, and the metrics of Q; compiled as one function."""
        with self._autocast():
            losses = self.critic_losses(batch, randoms)
        return losses["critic"].mean(), mean_and_range(losses["q"])

    def mean_actor_loss(self, batch: TransitionBatch, randoms: SacRandoms) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of the actor's and the temperature's mean loss, and their metrics; compiled as one function."""
        with self._autocast():
            losses = self.actor_losses(batch, randoms)
        metrics = {f"loss_{name}": losses[name].detach().mean() for name in ("actor", "alpha")}
        # One backward pass for both: neither loss has a gradient for the other's parameters.
        loss = losses["actor"].mean() + losses["alpha"].mean()
        return loss, {**metrics, "entropy": -losses["log_prob"].mean()}

    def mean_auxiliary_loss(
        self, sequences: SequenceBatch, inputs: RandomInputs, lambda_cyc: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """λ_pred · L_pred + λ_cyc · L_cyc of the means over the batch, and the metrics; compiled as one function."""
        assert self.objective is not None
        with self._autocast():
            losses = self.auxiliary_losses(sequences, inputs)
        means = {name: losses[name].mean() for name in self.objective.loss_names}
        metrics = {f"loss_{name}": losses[name].detach().mean() for name in means}
        return self.objective.total(means, lambda_cyc), {**metrics, "target_spread": losses["target_spread"]}

    def update(self, batch: SacBatch, schedule: Schedule) -> Update:
        """One update of critic and auxiliary objective, and of actor and targets where they are due."""
        metrics = self.update_parts(batch, self.draw(batch), schedule)
        return Update({name: value.detach() for name, value in metrics.items()})

    def update_parts(self, batch: SacBatch, randoms: SacRandoms, schedule: Schedule) -> dict[str, Tensor]:
        """One update with given random numbers: every part that is due, one after the other; returns the metrics."""
        metrics = self.update_critic(batch.transitions, randoms)
        if batch.sequences is not None and randoms.auxiliary is not None:
            metrics |= self.update_auxiliary(batch.sequences, randoms.auxiliary, schedule["lambda_cyc"])
        if "actor" in schedule.due:
            metrics |= self.update_actor(batch.transitions, randoms)
        if "critic_target" in schedule.due:
            self.update_critic_target()
        if "momentum" in schedule.due:
            self.update_momentum()
        return metrics

    def update_critic(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """One step of critic and encoder on the soft Bellman error."""
        loss, metrics = self._mean_critic_loss(batch, randoms)
        self._set_gradients(loss, "critic")
        norm = self.clipped_adams["critic"].step()["critic"]
        return {"loss_critic": loss, **metrics, "grad_norm_critic": norm}

    def update_actor(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """One step of actor and temperature."""
        loss, metrics = self._mean_actor_loss(batch, randoms)
        self._set_gradients(loss, "actor", "temperature")
        metrics["grad_norm_actor"] = self.clipped_adams["actor"].step()["actor"]
        self.optimizers["temperature"].step()
        return {**metrics, "alpha": self.log_alpha.exp()}

    def update_auxiliary(self, batch: SequenceBatch, inputs: RandomInputs, lambda_cyc: Tensor) -> dict[str, Tensor]:
        """One step of encoder, dynamics models and heads on λ_pred · L_pred + λ_cyc · L_cyc."""
        loss, metrics = self._mean_auxiliary_loss(batch, inputs, lambda_cyc)
        self._set_gradients(loss, "auxiliary")
        if "encoder" in self.optimizers:  # its gradient is clipped by itself, then with the others', and used twice
            everything = self._parameters("auxiliary")
            nn.utils.clip_grad_norm_(self._parameters("encoder"), self.config.max_grad_norm)
            norm = nn.utils.clip_grad_norm_(everything, self.config.max_grad_norm)
            self.optimizers["encoder"].step()
            self.optimizers["auxiliary"].step()
        else:
            norm = self.clipped_adams["auxiliary"].step()["auxiliary"]
        return {**metrics, "loss_auxiliary": loss, "grad_norm_auxiliary": norm}

    def update_critic_target(self) -> None:
        """A soft update of the target critic's Q functions and encoder."""
        soft_update(self.target_critic.q1, self.critic.q1, self.config.q_tau)
        soft_update(self.target_critic.q2, self.critic.q2, self.config.q_tau)
        soft_update(self.target_critic.encoder, self.encoder, self.config.encoder_tau)

    def update_momentum(self) -> None:
        """A soft update of the momentum encoder f_m and projection g_m of the auxiliary objective."""
        if self.objective is not None:
            soft_update(self.momentum["encoder"], self.encoder, self.config.momentum_tau)
            soft_update(self.momentum["projector"], self.auxiliary["projector"], self.config.momentum_tau)

    def _autocast(self) -> torch.autocast:
        """bfloat16 where asked for; to be entered inside what is compiled.

        Around a compiled function it would hold for the whole backward pass, that of float32 layers included.
        """
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def _set_gradients(self, loss: Tensor, *names: str) -> None:
        """Gives the parameters of the named optimizers, and no others, the gradient of `loss`."""
        for name in names:
            self.optimizers[name].zero_grad(set_to_none=True)
        loss.backward(inputs=[p for name in names for p in self._parameters(name)])

    def _parameters(self, name: str) -> list[nn.Parameter]:
        return [p for group in self.optimizers[name].param_groups for p in group["params"]]

    def compile(self) -> None:
        self._mean_critic_loss = torch.compile(self.mean_critic_loss)
        self._mean_actor_loss = torch.compile(self.mean_actor_loss)
        self._mean_auxiliary_loss = torch.compile(self.mean_auxiliary_loss)

    def released_parameter_count(self) -> int | None:
        """The released code counts shared encoders each time they appear, target networks, and a reward predictor.

        Other agents are not counted in the paper's tables.
        """
        if type(self.config) is not SacConfig:
            return None

        def size(*modules: nn.Module) -> int:
            return sum(p.numel() for module in modules for p in module.parameters())

        count = size(self.encoder.convs, self.actor, self.critic, self.target_critic)
        if self.objective is None:
            return count
        latent, hidden = self.config.latent, self.config.dynamics_hidden
        reward = (latent + 1) * hidden + 2 * hidden + (hidden + 1)  # with a LayerNorm
        return count + size(self.encoder, self.auxiliary, self.momentum) + reward

    def _modules(self) -> dict[str, nn.Module]:
        names = ("actor", "critic", "target_critic", "auxiliary", "momentum", "temperature")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: module.state_dict() for name, module in self._modules().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, module in self._modules().items():
            module.load_state_dict(state[name])
        for name, optimizer in self.optimizers.items():
            load_adam(optimizer, state["optimizers"][name])


if TYPE_CHECKING:
    _fulfils_contract: type[Agent] = Sac
