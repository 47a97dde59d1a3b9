"""A plain DQN, a policy-guided sampler of virtual actions and a family of environments, each registered by one call."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

import playvirtual as pv
from playvirtual.agents.agent import Every
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.vector import EnvStep
from playvirtual.method import DiscreteActions, SamplerInput
from playvirtual.replay import ReplayBuffer, UniformSampler
from playvirtual.replay.batches import SacBatch


@dataclass(frozen=True)
class TinyConfig(pv.AgentConfig):
    """A plain DQN."""

    tiny_hidden: int = pv.option("hidden units of the Q network", low=1)
    tiny_epsilon: float = pv.option("chance of a random action in training", low=0, high=1)
    learning_rate: float = pv.option("Adam's learning rate", low=0)
    discount: float = pv.option("γ", low=0, high=1)
    target_period: int = pv.option("updates between copies to the target network", low=1)


class TinyDQN:
    """Q-learning with a target network on uniformly sampled transitions; ε-greedy."""

    policy_parts = ("q",)

    def __init__(
        self,
        config: pv.Config,
        observation_shape: tuple[int, int, int],
        action_space: DiscreteActions,
        device: torch.device,
        generator: torch.Generator | None,
        bf16: bool,
    ) -> None:
        assert isinstance(config.agent, TinyConfig)
        c = self.config = config.agent
        self.observation_shape, self.action_space = observation_shape, action_space
        self.device, self.generator = torch.device(device), generator
        size = int(np.prod(observation_shape))
        self.q = nn.Sequential(
            nn.Flatten(), nn.Linear(size, c.tiny_hidden), nn.ReLU(), nn.Linear(c.tiny_hidden, action_space.n)
        ).to(self.device)
        self.target_q = copy.deepcopy(self.q).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=c.learning_rate)
        self.update_pattern = pv.UpdatePattern(target=Every(c.target_period, offset=c.target_period - 1))
        self.schedules: dict[str, Any] = {}

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        return {"q": self.q, "target_q": self.target_q}

    @torch.no_grad()
    def act(self, observation: Any, explore: bool = False) -> Tensor:
        images = torch.as_tensor(observation).to(self.device)
        greedy = self.q(images.reshape(-1, *self.observation_shape) / 255).argmax(1).view(images.shape[:-3])
        if not explore:
            return greedy
        return self.action_space.perturb(greedy, self.config.tiny_epsilon, self.generator)

    def make_sampler(self, replay: ReplayBuffer, generator: torch.Generator) -> UniformSampler:
        c = self.config
        # K = 0: transitions alone, no sequences.
        sizes = {"batch_size": c.batch_size, "sequence_batch_size": 1, "K": 0}
        return UniformSampler(replay, generator, gamma=c.discount, **sizes)

    def update(self, batch: SacBatch, schedule: pv.Schedule) -> pv.Update:
        t = batch.transitions
        q = self.q(t.observations / 255).gather(1, t.actions[:, None])[:, 0]  # (B,)
        with torch.no_grad():
            target = t.rewards + t.discounts * self.target_q(t.next_observations / 255).amax(1)
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if "target" in schedule.due:
            self.target_q.load_state_dict(self.q.state_dict())
        return pv.Update({"loss": loss.detach(), "q": q.detach().mean()})

    def compile(self) -> None:
        """Nothing here is worth compiling."""

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("q", "target_q", "optimizer")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


class PolicyGuided:
    """Rolls the agent's policy out by the forward model; with probability σ an action is a uniform draw instead."""

    sees_state = True

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def __call__(self, seen: SamplerInput) -> Tensor:
        if seen.policy is None:
            raise pv.InputError("virtual_actions: 'policy-guided' needs an agent whose policy acts on latent states")
        assert seen.z is not None
        z = seen.z.repeat_interleave(seen.M, 0)  # (B·M, …)
        actions = []
        for _ in range(seen.K):
            a = seen.action_space.perturb(seen.policy(z), self.sigma, seen.generator)
            z = seen.forward(z, a)
            actions.append(a)
        return torch.stack(actions, 1).unflatten(0, (seen.batch_size, seen.M))  # (B, M, K)


class Corridor:
    """A walk along a row of cells; the last one pays 1 and ends the episode. Action 1 goes right, 0 left."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.frame_shape = (1, length, length)
        self.action_space = spaces.Discrete(2)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.cell = int(np.random.default_rng(seed).integers(self.length - 1))

    def step(self, action: Any) -> EnvStep:
        self.cell = max(self.cell + (1 if int(action) else -1), 0)
        reached = self.cell == self.length - 1
        return EnvStep(float(reached), reached, reached)

    def frame(self) -> Any:
        frame = np.zeros(self.frame_shape, np.uint8)
        frame[0, :, self.cell] = 255
        return frame

    def render(self) -> Any:
        return self.frame().transpose(1, 2, 0).repeat(3, 2)

    def close(self) -> None:
        pass


LENGTHS = {"short": 6, "long": 10}


def make_corridor(name: str, config: EnvironmentConfig) -> Corridor:
    return Corridor(LENGTHS[name])


pv.register_agent(
    "tiny-dqn",
    TinyDQN,
    config=TinyConfig,
    actions="discrete",
    hyperparameters=TinyConfig(
        batch_size=64,
        updates_per_step=0.5,
        tiny_hidden=128,
        tiny_epsilon=0.5,
        learning_rate=3e-3,
        discount=0.98,
        target_period=20,
    ),
    note="a plain DQN on uniform replay",
)
pv.register_sampler("policy-guided", PolicyGuided)
pv.register_env(
    "corridor",
    make_corridor,
    tasks=tuple(LENGTHS),
    actions="discrete",
    options={"image_size": 10, "frame_stack": 1, "max_episode_frames": 40, "eval_envs": 2},
)
