"""BBF, "bigger, better, faster" (Schwarzer et al. 2023): SR-SPR with a larger encoder, AdamW and annealed returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from playvirtual.agents.agent import Agent
from playvirtual.agents.networks.impala import ImpalaEncoder
from playvirtual.agents.networks.rainbow import xavier_uniform
from playvirtual.agents.optim import make_adamw
from playvirtual.agents.resets import SrSpr
from playvirtual.config.modern import BbfConfig
from playvirtual.config.schema import Config


class Bbf(SrSpr):
    """After each reset returns begin long and discounts low, which learns fast, and end short and high."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert isinstance(config.agent, BbfConfig)
        c = config.agent

        def progress(step: int) -> float:
            return min(self.reset_moments.updates_since(step) / c.anneal_updates, 1.0) if c.anneal_updates else 1.0

        # The replay's sampler reads both in every update.
        self.schedules = {
            **self.schedules,
            "n_step": lambda step: annealed_n_step(progress(step), c.n_step, c.final_n_step),
            "discount": lambda step: annealed_discount(progress(step), c.initial_discount, c.discount),
        }

    def _make_encoder(self, config: Config) -> ImpalaEncoder:
        assert isinstance(config.agent, BbfConfig)
        c = config.agent
        encoder = ImpalaEncoder(
            self.observation_shape,
            c.channels,
            c.kernel_sizes,
            c.strides,
            c.residual_blocks,
            c.latent,
            background=c.background,
        )
        return encoder.apply(xavier_uniform)

    def _make_adam(self, learned: list[nn.Parameter]) -> torch.optim.Adam:
        assert isinstance(self.config, BbfConfig)
        c = self.config
        return make_adamw(
            learned,
            lr=c.learning_rate,
            betas=(c.adam_beta1, c.adam_beta2),
            eps=c.adam_eps,
            weight_decay=c.weight_decay,
            device=self.device,
        )


def annealed_n_step(progress: float, first: int, last: int) -> float:
    """A whole number of rewards that falls exponentially from `first` to `last` as progress goes from 0 to 1."""
    return float(round(first * (last / first) ** progress))


def annealed_discount(progress: float, first: float, last: float) -> float:
    """A discount γ whose 1 − γ changes exponentially from that of `first` to that of `last`."""
    return float(1.0 - (1.0 - first) ** (1.0 - progress) * (1.0 - last) ** progress)


if TYPE_CHECKING:
    _bbf: type[Agent] = Bbf
