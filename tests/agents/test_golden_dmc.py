"""The released code's own losses and gradients on DMControl-sized networks, reproduced."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from playvirtual.agents.losses import squashed_gaussian
from playvirtual.agents.sac import Sac, SacRandoms
from playvirtual.config.build import build
from playvirtual.config.schema import SacConfig
from playvirtual.method import BoxActions, RandomInputs
from playvirtual.replay.batches import SacBatch, SequenceBatch, TransitionBatch
from tests import golden
from tests.agents.every_loss import every_loss

TOLERANCE = 1e-5  # relative; the released code computes its distances in float32


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plain_name(name: str) -> str:
    """Our parameter names -> the names in the golden file."""
    for ours, theirs in {
        "actor.latent.": "actor.encoder.",
        "encoder.latent.": "encoder.",
        "mlp.": "",
        "forward_dynamics": "dm",
        "backward_dynamics": "bdm",
        **{f"convs.layers.{i}.": f"conv{i + 1}." for i in range(4)},
        **{f".{2 * i}.": f".fc{i + 1}." for i in range(3)},  # the linear layers of a Sequential
    }.items():
        name = name.replace(ours, theirs)
    return name


def golden_agent() -> tuple[Sac, dict[str, Any]]:
    parameters, case = golden.load("dmc")
    config = build("dmc/walker-walk", preset="reference", K=case["K"], M=case["M"], initial_temperature=0.1)
    assert isinstance(config.agent, SacConfig)
    # Without augmentation: frames of the crop's own size and an intensity of exactly 1.
    config = replace(config, agent=replace(config.agent, intensity_scale=0.0))
    agent = Sac(config, (9, 84, 84), BoxActions((-1.0,) * case["A"], (1.0,) * case["A"]))
    named = {
        **dict(agent.critic.named_parameters()),
        **{f"actor.{name}": p for name, p in agent.actor.named_parameters()},
        **dict(agent.auxiliary.named_parameters()),
        **{f"target_projector.{n}": p for n, p in agent.momentum["projector"].named_parameters()},
    }
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(parameters.pop(plain_name(name)))
    assert not parameters  # every tensor of the file has found its place
    agent.target_critic.load_state_dict(agent.critic.state_dict())
    agent.momentum["encoder"].load_state_dict(agent.encoder.state_dict())
    return agent, case


def golden_batch(case: dict[str, Any]) -> tuple[SacBatch, SacRandoms]:
    A, B, K, M, phase = (case[key] for key in ("A", "B", "K", "M", "phase"))
    pixels = np.floor(256 * golden.u((K + 1) * B * 9 * 84 * 84, phase + 100)).astype(np.uint8)
    observations = torch.from_numpy(pixels.reshape(K + 1, B, 9, 84, 84))
    actions = golden.w((K + 1, B, A), phase + 101, 1.0)
    virtual = torch.stack([golden.w((M, B, A), phase + 200 + k, 1.0) for k in range(K)])  # (K, M, B, A)

    transitions = TransitionBatch(
        positions=torch.arange(B),
        observations=observations[0],
        actions=actions[0],
        rewards=torch.from_numpy(golden.u(B, phase + 102)),
        discounts=torch.full((B,), 0.99),
        next_observations=observations[1],
    )
    sequences = SequenceBatch(
        positions=torch.arange(B),
        observations=observations.transpose(0, 1),
        actions=actions[:K].transpose(0, 1),
        mask=torch.ones(B, K + 1),
    )

    def still(count: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(count, 2, dtype=torch.int64), torch.zeros(count)

    draws = SacRandoms(
        offsets=still(B)[0],
        next_offsets=still(B)[0],
        noise=golden.w((B, A), phase + 301, 1.0),
        next_noise=golden.w((B, A), phase + 300, 1.0),
        auxiliary=RandomInputs(still(B), still(0), still(B * (K + M)), virtual.permute(2, 1, 0, 3)),
    )
    return SacBatch(transitions, sequences), draws


@pytest.fixture(scope="module")
def computed() -> tuple[Sac, dict[str, Any], dict[str, Tensor]]:
    torch.set_default_dtype(torch.float64)
    agent, case = golden_agent()
    return agent, case, every_loss(agent, *golden_batch(case))


def assert_close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        actual.detach(), torch.tensor(expected, dtype=torch.float64), rtol=TOLERANCE, atol=TOLERANCE
    )


def test_latent_state(computed: Any) -> None:
    agent, case, _ = computed
    batch, draws = golden_batch(case)
    z = agent.encoder(agent.augment.crop(batch.transitions.observations, draws.offsets))
    assert_close(z.sum(1), case["z_sum"])
    assert_close(z[0, : len(case["z_first"])], case["z_first"])


def test_action_without_exploration(computed: Any) -> None:
    agent, case, _ = computed
    batch, _ = golden_batch(case)
    assert_close(agent.act(batch.transitions.observations), case["mean_action"])


def test_auxiliary_losses(computed: Any) -> None:
    _, case, losses = computed
    assert_close(losses["pred"], np.sum(case["prediction_loss_per_step"], axis=0).tolist())
    assert_close(losses["pred"].mean(), case["prediction_loss"])
    assert_close(losses["cyc"].mean(), case["cycle_loss"])


def test_auxiliary_gradients(computed: Any) -> None:
    agent, case, losses = computed
    parts: dict[str, nn.Module] = {
        "encoder": agent.encoder,
        "dm": agent.auxiliary["forward_dynamics"],
        "bdm": agent.auxiliary["backward_dynamics"],
        **{part: agent.auxiliary[part] for part in ("projector", "predictor")},
    }
    total = (losses["pred"] + losses["cyc"]).mean()
    for part, module in parts.items():
        gradients = torch.autograd.grad(total, [*module.parameters()], retain_graph=True)
        assert_close(torch.stack([g.norm() for g in gradients]).norm(), case["grad_norm"][part])


def test_soft_actor_critic_losses(computed: Any) -> None:
    _, case, losses = computed
    assert_close(losses["target"], case["target_q"])
    assert_close(losses["critic"].mean(), case["critic_loss"])
    assert_close(losses["actor"].mean(), case["actor_loss"])
    assert_close(losses["alpha"].mean(), case["temperature_loss"])


def test_log_probability_of_the_next_action(computed: Any) -> None:
    agent, case, _ = computed
    batch, draws = golden_batch(case)
    images = agent.augment.crop(batch.transitions.next_observations, draws.next_offsets)
    mean, log_std = agent.actor(agent.encoder.convs(images))
    _, log_prob = squashed_gaussian(mean, log_std, draws.next_noise)
    assert_close(log_prob, case["next_log_prob"])
