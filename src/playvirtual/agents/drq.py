"""DrQ (Kostrikov et al. 2021): Q-learning and SAC on randomly shifted images, SAC's targets averaged over views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.agents.agent import Agent
from playvirtual.agents.efficient_rainbow import EpsilonGreedyRainbow
from playvirtual.agents.losses import critic_loss, select, soft_target, squashed_gaussian
from playvirtual.agents.sac import Sac, SacRandoms
from playvirtual.config.baselines import DrqSacConfig
from playvirtual.config.schema import Config
from playvirtual.method import RandomInputs
from playvirtual.replay.augmentation import RandomShift
from playvirtual.replay.batches import RainbowBatch, SacBatch, TransitionBatch


class DrqDqn(EpsilonGreedyRainbow):
    """A double dueling DQN with n-step returns: values in place of distributions, batches drawn uniformly."""

    def q_values(self, logits: Tensor) -> Tensor:
        """(N, |A|, 1) -> (N, |A|): the head's outputs are values."""
        return logits[..., 0]

    def rl_losses(self, batch: RainbowBatch, inputs: RandomInputs, z: Tensor, z_next: Tensor) -> dict[str, Tensor]:
        """Huber's loss of the temporal difference; the priority has no effect on uniform batches."""
        values, next_values = self.online_logits(batch, inputs, z)
        with torch.no_grad():
            best = self.q_values(next_values).argmax(1)  # (B,): double DQN
            next_value = select(self.target_head(z_next), best)[:, 0]
            target = batch.returns + batch.discounts * next_value
        loss = F.huber_loss(select(values, batch.sequences.actions[:, 0])[:, 0], target, reduction="none")
        return {"rl": loss, "priority": loss.detach(), "q": self.q_values(values.detach()).amax(1)}


class DrqSac(Sac):
    """SAC on shifted images: targets are the mean over `target_views` views of s_{t+1}, the critic's loss over `views`
    of s_t.

    Its convolutions start orthogonal as a whole, where SAC's have weights at their centers alone.
    """

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert isinstance(config.agent, DrqSacConfig)
        self.views, self.target_views = config.agent.views, config.agent.target_views
        for layer in self.encoder.convs.layers:
            assert isinstance(layer, nn.Conv2d)
            nn.init.orthogonal_(layer.weight, gain=nn.init.calculate_gain("relu"))
        self.target_critic.encoder.load_state_dict(self.encoder.state_dict())
        if self.objective is not None:
            self.momentum["encoder"].load_state_dict(self.encoder.state_dict())

    def _make_augment(self, image_size: int, block: int) -> RandomShift:
        assert isinstance(self.config, DrqSacConfig)
        return RandomShift(self.config.shift_pad, 0.0, block)

    def draw(self, batch: SacBatch) -> SacRandoms:
        """All random numbers of one update, those of every view among them."""
        return self.draw_views(batch, views=self.views, target_views=self.target_views)

    def critic_losses(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """{"critic", "target", "q"}, (B,) each, as in SAC: means over the views, the target's over the target views."""
        V, T = self.views, self.target_views
        images = self.augment.crop(batch.observations.repeat(V, 1, 1, 1), randoms.offsets)
        q1, q2 = self.critic(images, batch.actions.repeat(V, 1))  # (V·B,)
        with torch.no_grad():
            images = self.augment.crop(batch.next_observations.repeat(T, 1, 1, 1), randoms.next_offsets)
            mean, log_std = self.actor(self.encoder.convs(images))
            action, log_prob = squashed_gaussian(mean, log_std, randoms.next_noise)
            next_q1, next_q2 = self.target_critic(images, action)
            rewards, discounts = batch.rewards.repeat(T), batch.discounts.repeat(T)
            targets = soft_target(rewards, discounts, next_q1, next_q2, log_prob, self.log_alpha.exp())
            target = targets.view(T, -1).mean(0)  # (B,)
        loss = critic_loss(q1, q2, target.repeat(V)).view(V, -1).mean(0)
        q = torch.minimum(q1, q2).detach().view(V, -1).mean(0)
        return {"critic": loss, "target": target, "q": q}

    def actor_losses(self, batch: TransitionBatch, randoms: SacRandoms) -> dict[str, Tensor]:
        """SAC's, on the first view of each observation."""
        offsets, next_offsets, noise, next_noise, auxiliary = randoms
        first = SacRandoms(offsets[: len(batch.actions)], next_offsets, noise, next_noise, auxiliary)
        return super().actor_losses(batch, first)


if TYPE_CHECKING:
    _dqn: type[Agent] = DrqDqn
    _sac: type[Agent] = DrqSac
