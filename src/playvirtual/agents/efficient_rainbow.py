"""Data-efficient Rainbow (`der`) and overtrained Rainbow (`otr`), and the ε-greedy Rainbow that `drq` has as well.

DER is Rainbow with earlier and more frequent updates (van Hasselt et al. 2019); OTR is Rainbow without noisy layers,
dueling and double Q-learning and with eight times its updates (Kielak 2019). With K > 0 both learn from the auxiliary
objective as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from playvirtual.agents.agent import Agent, Observations, Schedule, Update
from playvirtual.agents.losses import categorical_q_learning
from playvirtual.agents.networks.rainbow import PixelEncoder, QHead, xavier_uniform
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.baselines import EpsilonGreedyConfig
from playvirtual.config.schema import Config
from playvirtual.method import RandomInputs
from playvirtual.replay.batches import RainbowBatch


class EfficientRainbow(Rainbow):
    """Rainbow on one hidden layer; a head of `noisy_sigma` 0 has no noise."""

    always_rescaled = False
    own_target_noise = True  # it is copied rarely
    dueling = True

    def _make_encoder(self, config: Config) -> PixelEncoder:
        return super()._make_encoder(config).apply(xavier_uniform)

    def _make_head(self) -> QHead:
        c = self.config
        size, actions = self.encoder.size, self.action_space.n
        return QHead(size, actions, c.hidden, c.atoms, sigma=c.noisy_sigma, dueling=self.dueling)

    def rl_losses(self, batch: RainbowBatch, inputs: RandomInputs, z: Tensor, z_next: Tensor) -> dict[str, Tensor]:
        losses = super().rl_losses(batch, inputs, z, z_next)
        return {**losses, "priority": losses["rl"].detach()}  # the cross-entropy, not the KL divergence


class EpsilonGreedyRainbow(EfficientRainbow):
    """Explores by random actions, whose share falls linearly from 1 once learning has started."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert isinstance(config.agent, EpsilonGreedyConfig)
        first = config.replay.learning_starts * config.frames_per_step
        last, decay = config.agent.epsilon_end, config.agent.epsilon_decay_steps
        self.schedules = {**self.schedules, "epsilon": lambda step: linear_epsilon(step - first, decay, last)}
        # Acting knows no step: every update writes the share of that step here, where captured acting reads it.
        self.epsilon = torch.ones((), device=self.device)

    @torch.no_grad()
    def act(self, observation: Observations, explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…) actions: the best ones or, to explore, now and then a random one."""
        best = super().act(observation)
        return self.action_space.perturb(best, self.epsilon, self.generator) if explore else best

    def update(self, batch: RainbowBatch, schedule: Schedule) -> Update:
        self.epsilon.copy_(schedule["epsilon"])
        return super().update(batch, schedule)

    def explore_as_at(self, step: int) -> None:
        """From now on the share of random actions is that of the step."""
        self.epsilon.fill_(self.schedules["epsilon"](step))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "epsilon": self.epsilon}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.epsilon.copy_(state["epsilon"])


class Otr(EpsilonGreedyRainbow):
    """C51 whose target network chooses the action that it values."""

    dueling = False

    def rl_losses(self, batch: RainbowBatch, inputs: RandomInputs, z: Tensor, z_next: Tensor) -> dict[str, Tensor]:
        logits = self.head(z)
        with torch.no_grad():
            target_logits = self.target_head(z_next)
        given = logits, target_logits, target_logits, batch.sequences.actions[:, 0]
        rl = categorical_q_learning(*given, batch.returns, batch.discounts, self.support)
        return {"rl": rl.loss, "priority": rl.loss.detach(), "q": rl.q}


def linear_epsilon(steps: int, decay_steps: int, end: float) -> float:
    """ε after so many steps of learning: 1 at first, `end` after `decay_steps`, a straight line between them."""
    return end + (1.0 - end) * min(max(1.0 - steps / decay_steps, 0.0), 1.0)


if TYPE_CHECKING:
    _der: type[Agent] = EfficientRainbow
    _otr: type[Agent] = Otr
