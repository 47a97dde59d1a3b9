"""The released code's own losses, priorities and gradients on Pong-sized networks, reproduced."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.build import build
from playvirtual.method import DiscreteActions, RandomInputs
from playvirtual.replay.batches import RainbowBatch, SequenceBatch
from tests import golden

TOLERANCE = 1e-5  # relative; the released code computes its distances in float32


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plain_name(name: str) -> str:
    """Our parameter names -> the names in the golden file."""
    name = name.replace("encoder.convs.0", "encoder.conv1").replace("encoder.convs.1", "encoder.conv2")
    name = name.replace("encoder.convs.2", "encoder.conv3").replace("head.atom_bias", "advantage.atom_bias")
    name = name.replace("forward_dynamics", "dm").replace("backward_dynamics", "bdm")
    return name.removeprefix("head.")


def golden_agent() -> tuple[Rainbow, dict[str, Any]]:
    parameters, case = golden.load("atari")
    config = build("atari/pong", preset="reference", K=case["K"], M=case["M"])
    # Without augmentation: a shift of 0 pixels and an intensity of exactly 1.
    config = replace(config, agent=replace(config.agent, shift_pad=0, intensity_scale=0.0))
    agent = Rainbow(config, (4, 84, 84), DiscreteActions(case["A"]))
    with torch.no_grad():
        for name, p in agent.online.named_parameters():
            if name.endswith("_sigma"):
                p.zero_()
            else:
                p.copy_(parameters[plain_name(name)])
    agent.update_target()
    return agent, case


def golden_batch(case: dict[str, Any]) -> tuple[RainbowBatch, RandomInputs]:
    A, B, K, M, phase = (case[key] for key in ("A", "B", "K", "M", "phase"))
    frames = np.floor(256 * golden.u((K + 14) * B * 84 * 84, phase + 100)).astype(np.uint8)
    frames = torch.from_numpy(frames.reshape(K + 14, B, 84, 84))

    def observation(t: int) -> Tensor:
        return frames[t : t + 4].transpose(0, 1)  # (B, 4, 84, 84)

    b = torch.arange(B)
    done = b % 3 == 2
    sequences = SequenceBatch(
        positions=b,
        observations=torch.stack([observation(t) for t in range(K + 1)], 1),
        actions=torch.stack([(2 * t + 3 * b) % A for t in range(K)], 1),
        mask=torch.ones(B, K + 1),
    )
    batch = RainbowBatch(
        sequences=sequences,
        weights=torch.ones(B),
        returns=1.5 * torch.sin(b + phase),
        discounts=0.99**10 * (~done).double(),
        next_observations=observation(10),
    )
    k, m = torch.arange(K), torch.arange(M)
    virtual = (3 * k[None, None] + 5 * m[None, :, None] + 7 * b[:, None, None]) % A  # (B, M, K)

    def still(count: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(count, 2, dtype=torch.int64), torch.zeros(count)

    return batch, RandomInputs(still(B), still(B), still(B * (1 + K + M)), virtual)


@pytest.fixture(scope="module")
def computed() -> tuple[Rainbow, dict[str, Any], dict[str, Tensor], Tensor]:
    torch.set_default_dtype(torch.float64)
    agent, case = golden_agent()
    batch, draws = golden_batch(case)
    losses = agent.losses(batch, draws)
    total = (losses["rl"] + losses["pred"] + losses["cyc"]).mean()
    total.backward()
    return agent, case, losses, total


def assert_close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        actual.detach(), torch.tensor(expected, dtype=torch.float64), rtol=TOLERANCE, atol=TOLERANCE
    )


def test_latent_state(computed: Any) -> None:
    agent, case, _, _ = computed
    batch, draws = golden_batch(case)
    z = agent.encoder(agent.augment(batch.sequences.observations[:, 0], draws.online))
    assert_close(z.flatten(1).sum(1), case["z_sum"])
    assert_close(z[0, :4, 3, 3], case["z_first"])
    assert_close(agent.q_values(agent.head(z)), case["q_expectation"])


def test_losses(computed: Any) -> None:
    _, case, losses, total = computed
    assert_close(losses["rl"], case["rl_loss"])
    assert_close(losses["pred"], np.sum(case["prediction_loss"], axis=1).tolist())
    assert_close(losses["cyc"], case["cycle_loss"])
    assert_close(losses["priority"], case["priority_kl"])
    assert_close(total, case["total"])


def test_gradients(computed: Any) -> None:
    agent, case, _, _ = computed
    means = {
        "encoder": agent.encoder.parameters(),
        "dm": agent.online["forward_dynamics"].parameters(),
        "bdm": agent.online["backward_dynamics"].parameters(),
        "predictor": agent.online["predictor"].parameters(),
        # of the hidden layers the golden norm covers the mean weights alone
        "advantage_hidden": [agent.head.advantage.hidden.weight_mu],
        "value_hidden": [agent.head.value.hidden.weight_mu],
    }
    for part, parameters in means.items():
        norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        assert_close(norm, case["grad_norm"][part])
