"""A Rainbow agent of a few hundred weights whose every option differs from its default, and batches for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from playvirtual.agents.agent import Schedule
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.build import build, method_changes
from playvirtual.config.schema import Config
from playvirtual.method import DiscreteActions, RandomInputs
from playvirtual.replay import ImageRandoms
from playvirtual.replay.batches import RainbowBatch, SequenceBatch
from tests.agents.plain_rainbow import Draws, PlainRainbow, ViewDraw

NUM_ACTIONS, IMAGE = 3, (2, 9, 9)
OPTIONS: dict[str, Any] = {
    "K": 3,
    "M": 2,
    "lambda_pred": 0.6,
    "lambda_cyc_max": 0.7,
    "i_end": 100,
    "channels": "3,4",
    "kernel_sizes": "3,2",
    "strides": "2,1",
    "latent": 0,
    "dynamics_hidden": 6,
    "hidden": 5,
    "atoms": 7,
    "v_max": 3.0,
    "noisy_sigma": 0.4,
    "learning_rate": 0.01,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_eps": 1e-3,
    "max_grad_norm": 0.2,
    "target_period": 2,
    "shift_pad": 2,
    "intensity_scale": 0.2,
}


def small_config(method: str = "playvirtual", **options: Any) -> Config:
    """What the method decides itself is left to it."""
    own = {name: value for name, value in OPTIONS.items() if name not in method_changes(method)}
    return build("toy/catch", method=method, **{**own, **options})


def small_agent(config: Config, seed: int = 0) -> Rainbow:
    """Its target networks and their noise are moved away from the online ones."""
    torch.manual_seed(seed)
    agent = Rainbow(config, IMAGE, DiscreteActions(NUM_ACTIONS), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for part in agent.parts.values():
            for p in part.parameters():
                p.add_(0.2 * torch.randn_like(p))
        for noise in agent.target_head.buffers():
            noise.copy_(torch.randn_like(noise))
    return agent


def small_batch(agent: Rainbow, seed: int = 0, B: int = 5) -> RainbowBatch:
    """Weights below 1, sequences that end early, returns beyond the support, and steps that do not bootstrap."""
    g, K = torch.Generator().manual_seed(seed), agent.objective.K
    mask = torch.ones(B, K + 1)
    mask[1, 2:] = 0  # s_{t+1} is the last state that counts
    mask[2] = 0  # not even s_t counts
    mask[3, 1:] = 0  # s_t alone
    discounts = 0.5 + 0.5 * torch.rand(B, generator=g)
    discounts[2] = 0
    sequences = SequenceBatch(
        positions=torch.arange(B),
        observations=torch.randint(256, (B, K + 1, *IMAGE), generator=g, dtype=torch.uint8),
        actions=torch.randint(NUM_ACTIONS, (B, max(K, 1)), generator=g),
        mask=mask,
    )
    return RainbowBatch(
        sequences=sequences,
        weights=0.2 + 0.8 * torch.rand(B, generator=g),
        returns=2 * torch.randn(B, generator=g),
        discounts=discounts,
        next_observations=torch.randint(256, (B, *IMAGE), generator=g, dtype=torch.uint8),
    )


def schedule_at(agent: Rainbow, step: int, number: int) -> Schedule:
    """The agent's own schedules at a step, and the parts that its update number `number` moves."""
    schedule = Schedule(agent.schedules)
    schedule.set(step)
    schedule.due = agent.update_pattern.due(number)
    return schedule


def target_state(agent: Rainbow) -> dict[str, Tensor]:
    """Weights and noise of the target networks under the names of the online ones."""
    parts = {"encoder": agent.target_encoder, "head": agent.target_head}
    return {f"{part}.{name}": p for part, module in parts.items() for name, p in module.state_dict().items()}


def plain_twin(agent: Rainbow, config: Config) -> PlainRainbow:
    """The plain reading, with the agent's weights."""
    twin = PlainRainbow(config.agent, config.objective, NUM_ACTIONS, int(config.objective.M))
    twin.load(agent.online.state_dict(), target_state(agent), frozen="encoder." if config.encoder_from else None)
    return twin


def plain_draws(agent: Rainbow, inputs: RandomInputs) -> Draws:
    """What the agent has drawn, one view at a time: the target encoder sees s_{t+n}, then the K states that follow s_t
    of each sample (with backward prediction s_t before them), then each sample's views of s_t."""
    assert inputs.virtual is not None
    B, K, views = len(inputs.virtual), agent.objective.K, agent.objective.views
    backward = agent.objective.backward_prediction

    def each(randoms: ImageRandoms) -> list[ViewDraw]:
        both = zip(randoms.offsets.tolist(), randoms.noise.tolist(), strict=True)
        return [ViewDraw(top, left, normal) for (top, left), normal in both]

    target = each(inputs.target)
    states = K + backward
    recorded, cycle = target[B : B + B * states], target[B + B * states :]
    sequences = [recorded[b * states : (b + 1) * states] for b in range(B)]
    noise = {f"head.{name}": value.clone() for name, value in agent.head.named_buffers()}
    return Draws(
        online=each(inputs.online),
        rl=each(inputs.rl),
        rl_target=target[:B],
        future=[sequence[backward:] for sequence in sequences],
        cycle=[cycle[b * views : (b + 1) * views] for b in range(B)],
        virtual=inputs.virtual.tolist(),
        noise=noise,
        past=[sequence[: K if backward else 0] for sequence in sequences],
        last=each(inputs.last) if inputs.last is not None else [],
    )
