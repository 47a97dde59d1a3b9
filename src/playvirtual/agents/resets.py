"""Agents that make parts of their networks anew while they learn: SPR with resets, and SR-SPR.

Networks that were trained on few data lose some of their ability to learn from more (Nikishin et al. 2022). The replay
buffer stays, so that new layers catch up within thousands of updates, and many updates per step pay (D'Oro et al.
2023).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from playvirtual.agents.agent import Agent
from playvirtual.agents.efficient_rainbow import EpsilonGreedyRainbow
from playvirtual.agents.networks.rainbow import DuelingHead, xavier_uniform
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.modern import ResetConfig, SrSprConfig
from playvirtual.config.schema import Config

SHRUNK = ("encoder", "forward_dynamics", "backward_dynamics")  # parts that a reset of SR-SPR moves towards new ones


class ResetMoments:
    """When networks are reset: after every `reset_every` steps, as long as so many are left."""

    def __init__(self, config: Config) -> None:
        assert isinstance(config.agent, ResetConfig)
        self._learning_starts, self._per_step = config.replay.learning_starts, config.agent.updates_per_step
        self._frames_per_step = config.frames_per_step
        every = -(-config.agent.reset_every // config.frames_per_step)  # agent steps
        steps = range(every, config.agent_steps - every + 1, every) if every else range(0)
        self._steps = [step for step in steps if self._updates_by(step)]
        self._counts = [self._updates_by(step) for step in self._steps]

    def _updates_by(self, agent_step: int) -> int:
        """The updates made when so many agent steps have been taken."""
        return max(0, int((agent_step - self._learning_starts + 1) * self._per_step + 1e-9))

    def due(self, update: int) -> int:
        """How many resets come before update number `update`, counted from 0.

        None follows the last update: at its end a run is evaluated as it was trained.
        """
        return bisect_right(self._counts, update)

    def updates_since(self, step: int) -> float:
        """The updates from the last reset, or from the first update, to those of `step`, in the run's step unit."""
        agent_step = step / self._frames_per_step
        before = max((s for s in self._steps if s < agent_step), default=self._learning_starts - 1)
        return max(0.0, (agent_step - before - 1) * self._per_step)


@torch.no_grad()
def move_towards(module: nn.Module, other: nn.Module, keep: float) -> None:
    """Weights ← keep · weights + (1 − keep) · those of another module of the same layers, which may be on the CPU."""
    for own, new in zip(module.parameters(), other.parameters(), strict=True):
        own.lerp_(new.to(own), 1.0 - keep) if keep else own.copy_(new)


@torch.no_grad()
def clear_moments(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Makes optimizers forget all gradients that they have seen, in place: CUDA graphs know their state by address."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()


class ResettingRainbow(Rainbow):
    """Rainbow that is reset when `ResetMoments` says; its subclasses say what a reset makes anew.

    A run that is extended makes up by one reset for those that it left out for want of steps.
    """

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._run_config = config
        self.reset_moments = ResetMoments(config)
        self._resets_made = 0

    def resets_before(self, update: int) -> bool:
        """Whether `reset` precedes update number `update`, counted from 0."""
        return self.reset_moments.due(update) > self._resets_made

    def reset(self, update: int) -> None:
        """Counts the reset and clears Adam's moments; a subclass makes networks anew."""
        self._resets_made = self.reset_moments.due(update)
        clear_moments([self.optimizer])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "resets": self._resets_made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resets_made = state["resets"]


class RainbowWithResets(ResettingRainbow):
    """Rainbow with SPR or PlayVirtual whose last layers are made anew (Nikishin et al. 2022)."""

    def reset(self, update: int) -> None:
        """Makes the head's last layers anew, mean and noise, and clears Adam's moments."""
        super().reset(update)
        fresh = new_agent(self, self._run_config).head
        assert isinstance(self.head, DuelingHead)
        assert isinstance(fresh, DuelingHead)
        move_towards(self.head.value.out, fresh.value.out, 0.0)
        move_towards(self.head.advantage.out, fresh.advantage.out, 0.0)
        with torch.no_grad():
            self.head.atom_bias.zero_()


class SrSpr(ResettingRainbow, EpsilonGreedyRainbow):
    """SPR for many updates per step (D'Oro et al. 2023), which acts by its slowly moving target network.

    A reset makes head, projection and prediction head anew and moves encoder and dynamics models towards new ones; the
    target networks get new weights of their own.
    """

    policy_parts = ("target_encoder", "target_head")
    dynamics_batch_norm = False
    always_rescaled = True

    def _make_networks(self, config: Config) -> None:
        super()._make_networks(config)
        self.online.apply(xavier_uniform)  # prediction head and dynamics models too
        self.target_encoder.load_state_dict(self.encoder.state_dict())
        self.target_head.load_state_dict(self.head.state_dict())

    def _acting(self) -> tuple[nn.Module, nn.Module]:
        return self.target_encoder, self.target_head

    def reset(self, update: int) -> None:
        """Shrinks and perturbs encoder and dynamics models, makes the rest anew and clears Adam's moments."""
        super().reset(update)
        assert isinstance(self.config, SrSprConfig)
        keeps = {name: self.config.reset_keeps if name in SHRUNK else 0.0 for name in self.online}
        if self._run_config.encoder_from:
            keeps["encoder"] = 1.0  # a pretrained encoder is kept as it is
        online, target = new_agent(self, self._run_config).parts, new_agent(self, self._run_config).parts
        for name, part in self.online.items():
            move_towards(part, online[name], keeps[name])
        for name in ("encoder", "head"):
            move_towards(self.parts[f"target_{name}"], target[name], keeps[name])


def new_agent(agent: Rainbow, config: Config) -> Rainbow:
    """An untrained agent of the same class on the CPU, by random numbers of this one's generator."""
    seed = int(torch.randint(2**31, (), generator=agent.generator, device=agent.device))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return type(agent)(config, agent.observation_shape, agent.action_space)


if TYPE_CHECKING:
    _rainbow: type[Agent] = RainbowWithResets
    _sr_spr: type[Agent] = SrSpr
