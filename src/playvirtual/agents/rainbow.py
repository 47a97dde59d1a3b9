"""The discrete agent: Rainbow with SPR's prediction and PlayVirtual's cycles over virtual trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Agent, Every, Observations, Schedule, Update, UpdatePattern, as_images
from playvirtual.agents.auxiliary import has_backward_model, lambda_cyc_schedule, make_objective
from playvirtual.agents.losses import categorical_q_learning, expected_values, mean_and_range
from playvirtual.agents.networks.rainbow import DuelingHead, PixelEncoder, QHead, RainbowEncoder, set_noise
from playvirtual.agents.optim import load_adam, make_adam
from playvirtual.config.schema import Config, RainbowConfig
from playvirtual.kernels.adam import ClippedAdam
from playvirtual.kernels.convolution import space_to_depth_size
from playvirtual.method import ActionSpace, ConvDynamics, DenseDynamics, DiscreteActions, Dynamics, RandomInputs
from playvirtual.method.target_network import copy_buffers, make_target, soft_update
from playvirtual.replay.augmentation import RandomShift
from playvirtual.replay.batches import RainbowBatch
from playvirtual.replay.buffer import ReplayBuffer
from playvirtual.replay.samplers import PrioritizedSampler

# Of the released Rainbow's parts that nothing reads: a reward predictor (a channel of the feature map, a hidden layer,
# one of three signs) and, in each dynamics model, an embedding of actions.
REWARD_HIDDEN, REWARD_SIGNS, EMBEDDING = 256, 3, 6


class Rainbow:
    """Acts by noisy dueling C51 and learns from prioritized sequences."""

    policy_parts = ("encoder", "head")
    # Whether z is rescaled to [0, 1] without dynamics models too; beside them it is, as they predict rescaled states.
    always_rescaled = True
    # Whether the target head draws noise of its own in every update; else it gets the online head's with its weights.
    own_target_noise = False
    dynamics_batch_norm = True  # between the two convolutions of a dynamics model of feature maps

    def __init__(
        self,
        config: Config,
        observation_shape: tuple[int, int, int],
        action_space: ActionSpace,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        bf16: bool = False,
    ) -> None:
        assert isinstance(config.agent, RainbowConfig)
        assert isinstance(action_space, DiscreteActions)
        c = self.config = config.agent
        self.device, self.generator, self.bf16 = torch.device(device), generator, bf16
        self.observation_shape, self.action_space = observation_shape, action_space
        self.support = torch.linspace(-c.v_max, c.v_max, c.atoms, device=self.device)
        self._make_networks(config)
        self._make_objective(config)
        self._make_optimizer()
        # The last of so many updates is followed by one of the target network.
        self.update_pattern = UpdatePattern(target=Every(c.target_period, offset=c.target_period - 1))
        self.schedules: Mapping[str, Callable[[int], float]] = {
            "lambda_cyc": lambda_cyc_schedule(config.objective),
            "beta": self._beta,
        }
        self._mean_loss = self.mean_loss

    def _make_networks(self, config: Config) -> None:
        """Encoder and head with their targets, and q and the dynamics models as far as the objective needs them."""
        self.encoder = self._make_encoder(config)
        self.head = self._make_head()
        self.online = nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        if config.objective.K:
            self.online["predictor"] = nn.Linear(self.head.projection_size, self.head.projection_size)
            self.online["forward_dynamics"] = self._make_dynamics()
        if has_backward_model(config.objective, self.action_space):
            self.online["backward_dynamics"] = self._make_dynamics()
        self.online.to(self.device)
        self.encoder.requires_grad_(not config.encoder_from)  # a pretrained encoder is kept as it is
        self.target_encoder, self.target_head = make_target(self.encoder), make_target(self.head)

    def _make_encoder(self, config: Config) -> PixelEncoder:
        c = self.config
        return RainbowEncoder(
            self.observation_shape,
            c.channels,
            c.kernel_sizes,
            c.strides,
            c.latent,
            rescaled=self.always_rescaled or config.objective.K > 0,
            background=c.background,
        )

    def _make_head(self) -> DuelingHead | QHead:
        c = self.config
        return DuelingHead(self.encoder.size, self.action_space.n, c.hidden, c.atoms, c.noisy_sigma)

    def _make_objective(self, config: Config) -> None:
        """The augmentation, and the objective around the networks; the head's first layers are the projection g."""
        c = self.config
        block = space_to_depth_size(self.encoder.convs[0], self.observation_shape, self.device)
        self.augment = RandomShift(c.shift_pad, c.intensity_scale, block)
        self.objective = make_objective(
            config.objective,
            actions=self.action_space,
            encoder=self.encoder,
            target_encoder=self.target_encoder,
            augment=self.augment,
            projector=self.head.project,
            target_projector=self.target_head.project,
            predictor=self._part("predictor"),
            forward=self._part("forward_dynamics"),
            backward=self._part("backward_dynamics"),
            policy=lambda z: self.q_values(self.head(z, noisy=False)).argmax(1),
        )
        self.loss_names: tuple[str, ...] = ("rl", *self.objective.loss_names)  # that are logged

    def _make_optimizer(self) -> None:
        """One Adam for all networks; its steps clip gradients group by group and can copy weights to the targets."""
        c = self.config
        self.optimizer = self._make_adam([p for p in self.online.parameters() if p.requires_grad])
        # Norms are clipped group by group; the prediction head q is not clipped.
        stem = [p for part in self._stem() for p in part.parameters() if p.requires_grad]
        groups = {"stem": stem}
        for name, part in (("dm", "forward_dynamics"), ("bdm", "backward_dynamics")):
            if part in self.online:
                groups[name] = [*self.online[part].parameters()]
        copies = [
            pair
            for online, target in ((self.encoder, self.target_encoder), (self.head, self.target_head))
            for pair in zip(online.parameters(), target.parameters(), strict=True)
        ]
        self.clipped_adam = ClippedAdam(self.optimizer, groups, c.max_grad_norm, copies)

    def _make_adam(self, learned: list[nn.Parameter]) -> torch.optim.Adam:
        c = self.config
        betas = (c.adam_beta1, c.adam_beta2)
        return make_adam(learned, lr=c.learning_rate, betas=betas, eps=c.adam_eps, device=self.device)

    def _stem(self) -> tuple[nn.Module, ...]:
        """The networks whose gradients are clipped together."""
        return self.encoder, self.head

    def _make_dynamics(self) -> Dynamics:
        if self.config.latent:
            return DenseDynamics(self.config.latent, self.action_space, self.config.dynamics_hidden, rescaled=True)
        return ConvDynamics(self.encoder.map_shape[0], self.action_space, batch_norm=self.dynamics_batch_norm)

    def _part(self, name: str) -> Any:
        """The network of that name; None in an agent that has none."""
        return dict(self.online.items()).get(name)

    def _beta(self, step: int) -> float:
        """β of the importance weights."""
        c = self.config
        progress = min(step / c.priority_beta_steps, 1.0)
        return c.priority_beta_start + progress * (c.priority_beta_end - c.priority_beta_start)

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        return {**self.online, "target_encoder": self.target_encoder, "target_head": self.target_head}

    def make_sampler(self, replay: ReplayBuffer, generator: torch.Generator) -> PrioritizedSampler:
        c = self.config
        return PrioritizedSampler(
            replay,
            generator,
            batch_size=c.batch_size,
            K=self.objective.K,
            n_step=c.n_step,
            gamma=c.discount,
            alpha=c.priority_exponent,
            largest_first=c.new_priority == "largest",
        )

    @torch.no_grad()
    def act(self, observation: Observations, explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…) actions; exploration is the noise of the head's layers."""
        return self.action_values(observation, explore).argmax(-1)

    @torch.no_grad()
    def action_values(self, observation: Observations, explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…, |A|): the expected return of each action."""
        images = as_images(observation, self.observation_shape, self.device)
        encoder, head = self._acting()
        z = encoder(as_floats(images.reshape(-1, *images.shape[-3:])))
        flat = self.q_values(head(z, noisy=explore))
        return flat.reshape(*images.shape[:-3], flat.shape[-1])

    def _acting(self) -> tuple[nn.Module, nn.Module]:
        """The encoder and the head that choose actions: those named in `policy_parts`."""
        return self.encoder, self.head

    @torch.no_grad()
    def encode(self, observation: Observations) -> Tensor:
        """(N, C, H, W) uint8 observations -> (N, …): f(s) of the images without augmentation."""
        z: Tensor = self.encoder(as_floats(as_images(observation, self.observation_shape, self.device)))
        return z

    def q_values(self, logits: Tensor) -> Tensor:
        """(N, |A|, atoms) -> (N, |A|): the expectation of the return."""
        return expected_values(logits, self.support)

    def draw(self, batch: RainbowBatch) -> Any:
        """All random numbers of one update but the noisy layers', so that the losses are a pure function of them.

        The RL loss shows s_{t+n} to the online network, which chooses the action there, and to the target network,
        which values it.
        """
        B = len(batch.returns)
        return self.objective.draw(batch.sequences.actions, self.generator, num_rl=B, num_rl_target=B)

    def losses(self, batch: RainbowBatch, inputs: Any) -> dict[str, Tensor]:
        """The losses by name, (B,) each: "rl" and the objective's ("pred", "cyc"); beside them "priority" and "q".

        Where states are predicted, "target_spread" () is that of the targets. `inputs` is what `draw` gave.
        """
        sequences = batch.sequences
        z = self.objective.encode(sequences.observations, inputs)  # (B, …): z_t
        z_last = self.objective.encode_last(sequences.observations, inputs)
        targets = self.objective.targets(sequences.observations, inputs, batch.next_observations, batch.images())
        rl = self.rl_losses(batch, inputs, z, targets.rl)
        auxiliary = self.objective.losses(z, targets, sequences.actions, inputs, sequences.mask, z_last)
        spread = {"target_spread": targets.spread()} if self.objective.K else {}
        return {**rl, **auxiliary, **spread}

    def rl_losses(self, batch: RainbowBatch, inputs: RandomInputs, z: Tensor, z_next: Tensor) -> dict[str, Tensor]:
        """{"rl", "priority", "q"}, (B,) each, from z_t and from the target encoder's state of s_{t+n}, (B, …) both."""
        logits, next_logits = self.online_logits(batch, inputs, z)
        with torch.no_grad():
            target_logits = self.target_head(z_next)
        given = logits, next_logits, target_logits, batch.sequences.actions[:, 0]
        rl = categorical_q_learning(*given, batch.returns, batch.discounts, self.support)  # double DQN
        return {"rl": rl.loss, "priority": rl.priority, "q": rl.q}

    def online_logits(self, batch: RainbowBatch, inputs: RandomInputs, z: Tensor) -> tuple[Tensor, Tensor]:
        """What the online network makes of z_t and, without gradient for the encoder, of s_{t+n}; (B, |A|, atoms)."""
        with torch.no_grad():
            z_next = self.encoder.encode_views(self.augment, batch.next_observations, inputs.rl)
        logits, next_logits = self.head(torch.cat([z, z_next])).split(len(z))
        return logits, next_logits

    def mean_loss(
        self, batch: RainbowBatch, inputs: Any, lambda_cyc: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Eq. 5 as the weighted mean over the batch, its metrics, and the priorities (B,); compiled as one function."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            losses = self.losses(batch, inputs)
        total = self.total_loss(losses, lambda_cyc)
        metrics = {f"loss_{name}": losses[name].detach().mean() for name in self.loss_names}
        if "target_spread" in losses:
            metrics["target_spread"] = losses["target_spread"]
        return (batch.weights * total).mean(), {**metrics, **mean_and_range(losses["q"])}, losses["priority"]

    def total_loss(self, losses: dict[str, Tensor], lambda_cyc: Tensor) -> Tensor:
        """Eq. 5 per sample, (B,)."""
        return self.objective.total(losses, lambda_cyc, losses["rl"])

    def resample_noise(self) -> None:
        """Draws the noise of an update; a target head without its own has the online head's from when it was copied."""
        self.head.resample(self.generator)
        if self.own_target_noise:
            self.target_head.resample(self.generator)

    def update(self, batch: RainbowBatch, schedule: Schedule) -> Update:
        """One optimizer step on `batch`."""
        self.resample_noise()
        loss, metrics, priorities = self._mean_loss(batch, self.draw(batch), schedule["lambda_cyc"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        target_due = "target" in schedule.due
        if target_due and self.config.target_moment == "before-step":
            self.update_target()
        after = target_due and self.config.target_moment == "after-step"
        copied = after and self.config.target_tau == 1.0  # in the optimizer's own pass over the parameters
        norms = self.clipped_adam.step(copy=copied)
        if copied:
            copy_buffers(self.target_encoder, self.encoder)
            copy_buffers(self.target_head, self.head)
        elif after:
            self.update_target()
        norms = {f"grad_norm_{group}": norm for group, norm in norms.items()}
        return Update({"loss": loss.detach(), **metrics, **norms}, priorities)

    def update_target(self) -> None:
        """A soft update of the target networks."""
        soft_update(self.target_encoder, self.encoder, self.config.target_tau)
        soft_update(self.target_head, self.head, self.config.target_tau)

    def compile(self) -> None:
        self._mean_loss = torch.compile(self.mean_loss)
        self.head.set_noise = self.target_head.set_noise = torch.compile(set_noise)

    def released_parameter_count(self) -> int | None:
        """The released code counts a reward predictor of loss weight 0 and embeddings of actions too.

        Dynamics models of vectors are this project's own, and other agents are not counted in the paper's tables.
        """
        if self.config.latent or type(self.config) is not RainbowConfig:
            return None
        count = sum(p.numel() for p in self.online.parameters())
        models = sum(name in self.online for name in ("forward_dynamics", "backward_dynamics"))
        if not models:
            return count
        channels, height, width = self.encoder.map_shape
        pixels = height * width
        reward = (channels + 1) + 2 + (pixels + 1) * REWARD_HIDDEN + (REWARD_HIDDEN + 1) * REWARD_SIGNS
        return count + reward + models * self.action_space.size * pixels * EMBEDDING

    def state_dict(self) -> dict[str, Any]:
        return {
            "online": self.online.state_dict(),
            "target_encoder": self.target_encoder.state_dict(),
            "target_head": self.target_head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.online.load_state_dict(state["online"])
        self.target_encoder.load_state_dict(state["target_encoder"])
        self.target_head.load_state_dict(state["target_head"])
        load_adam(self.optimizer, state["optimizer"])


def as_floats(images: Tensor) -> Tensor:
    """uint8 images as numbers from 0 to 1."""
    return images.to(torch.get_default_dtype()) / 255.0


if TYPE_CHECKING:
    _fulfils_contract: type[Agent] = Rainbow
