"""The baselines' agents with a few hundred weights, their target networks moved away, and batches for them."""

from __future__ import annotations

from typing import Any

import torch

import playvirtual as pv
from playvirtual.agents.agent import Agent, Schedule
from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.config import registry
from playvirtual.method import BoxActions, DiscreteActions
from playvirtual.replay.batches import RainbowBatch, SacBatch, SequenceBatch, TransitionBatch

NUM_ACTIONS, IMAGE = 3, (2, 9, 9)
A, B = 2, 5  # dimensions of continuous actions, samples of a batch
PIXELS = (3, 9, 9)
DISCRETE: dict[str, Any] = {
    "channels": "3,4",
    "kernel_sizes": "3,2",
    "strides": "2,1",
    "hidden": 5,
    "v_max": 3.0,
    "learning_rate": 0.01,
    "M": "0",
}
CONTINUOUS: dict[str, Any] = {
    "channels": "4,3",
    "kernel_sizes": "3,2",
    "strides": "2,1",
    "latent": 5,
    "hidden": 7,
    "dynamics_hidden": 6,
    "projection_hidden": 8,
    "image_size": 9,
    "crop_size": 9,
    "learning_rate": 0.03,
    "adam_eps": 0.01,
}


def rainbow_agent(
    method: str, kind: type[Any] | None = None, task: str = "toy/catch", seed: int = 0, **options: Any
) -> Any:
    """An agent of the method for discrete actions; `kind`, if given, must be its class."""
    atoms = {} if method.startswith("drq") else {"atoms": 7}
    config = pv.build(task, method=method, device="cpu", **{**DISCRETE, **atoms, **options})
    shape = (4, 84, 84) if task.startswith("atari") else IMAGE
    return _made(config, shape, DiscreteActions(NUM_ACTIONS), seed, kind)


def sac_agent(method: str, kind: type[Any] | None = None, seed: int = 0, **options: Any) -> Any:
    """An agent of the method for continuous actions."""
    config = pv.build("toy/reach", method=method, device="cpu", **{**CONTINUOUS, **options})
    space = BoxActions((-1.0,) * A, (1.0,) * A)
    return _made(config, PIXELS, space, seed, kind)


def _made(config: Any, shape: tuple[int, int, int], space: Any, seed: int, kind: type[Any] | None) -> Agent:
    torch.manual_seed(seed)
    made = registry.agent_of(config.agent).load()
    assert kind is None or made is kind
    agent: Agent = made(config, shape, space, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, part in agent.parts.items():
            for p in part.parameters():
                if "target" in name or "momentum" in name:
                    p.add_(0.3 * torch.randn_like(p))
    return agent


def rainbow_batch(agent: Rainbow, seed: int = 0) -> RainbowBatch:
    """Weights below 1, returns beyond the support, a step that does not bootstrap."""
    g, K = torch.Generator().manual_seed(seed), agent.objective.K
    discounts = 0.5 + 0.5 * torch.rand(B, generator=g)
    discounts[2] = 0
    sequences = SequenceBatch(
        positions=torch.arange(B),
        observations=torch.randint(256, (B, K + 1, *IMAGE), generator=g, dtype=torch.uint8),
        actions=torch.randint(NUM_ACTIONS, (B, max(K, 1)), generator=g),
        mask=torch.ones(B, K + 1),
    )
    return RainbowBatch(
        sequences=sequences,
        weights=0.2 + 0.8 * torch.rand(B, generator=g),
        returns=2 * torch.randn(B, generator=g),
        discounts=discounts,
        next_observations=torch.randint(256, (B, *IMAGE), generator=g, dtype=torch.uint8),
    )


def sac_batch(agent: Sac, seed: int = 0) -> SacBatch:
    """Transitions, one of which terminated, and sequences where the agent has an objective."""
    g = torch.Generator().manual_seed(seed)

    def pixels(*shape: int) -> torch.Tensor:
        return torch.randint(256, (*shape, *PIXELS), generator=g, dtype=torch.uint8)

    def uniform(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(shape, generator=g) - 1

    discounts = torch.full((B,), 0.9)
    discounts[1] = 0.0
    transitions = TransitionBatch(torch.arange(B), pixels(B), uniform(B, A), uniform(B), discounts, pixels(B))
    if agent.objective is None:
        return SacBatch(transitions, None)
    K = agent.objective.K
    return SacBatch(
        transitions, SequenceBatch(torch.arange(B), pixels(B, K + 1), uniform(B, K, A), torch.ones(B, K + 1))
    )


def schedule_at(agent: Agent, step: int, number: int) -> Schedule:
    """The agent's own schedules at a step, and the parts that its update number `number` moves."""
    schedule = Schedule(agent.schedules)
    schedule.set(step)
    schedule.due = agent.update_pattern.due(number)
    return schedule
