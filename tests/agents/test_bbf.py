"""BBF: annealed returns by hand, its encoder, its optimizer, dynamics models without BatchNorm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import playvirtual as pv
from playvirtual.agents.bbf import Bbf, annealed_discount, annealed_n_step
from playvirtual.agents.networks.impala import ImpalaEncoder, ResidualBlock
from playvirtual.agents.optim import make_adamw
from playvirtual.errors import InputError
from playvirtual.method import ConvDynamics, DiscreteActions
from playvirtual.replay.batches import n_step_return
from tests.agents.baseline_agents import rainbow_agent, rainbow_batch, schedule_at


@pytest.mark.parametrize(
    ("progress", "n_step", "discount"),
    [
        (0.0, 10, 0.97),
        (0.25, 7, 1 - 0.03**0.75 * 0.003**0.25),  # 10 · 0.3^¼ = 7.40
        (0.5, 5, 1 - (0.03 * 0.003) ** 0.5),  # 10 · 0.3^½ = 5.48
        (1.0, 3, 0.997),
    ],
)
def test_returns_are_annealed_exponentially(progress: float, n_step: int, discount: float) -> None:
    assert annealed_n_step(progress, 10, 3) == n_step
    assert annealed_discount(progress, 0.97, 0.997) == pytest.approx(discount, abs=1e-12)


def test_annealing_begins_anew_after_each_reset() -> None:
    """10,000 updates are 5,000 steps; updates begin in step 2,000 and resets come after 20,000, 40,000, …"""
    small = {"channels": "2,2,2", "kernel_sizes": "3,3,3", "strides": "2,2,2"}
    agent = rainbow_agent("bbf", Bbf, "atari/pong", reset_every=20_000, **small)
    n_step, discount = agent.schedules["n_step"], agent.schedules["discount"]
    steps = (2_000, 4_500, 7_000, 20_000, 20_001, 22_501, 25_001, 80_001, 100_000)
    assert [n_step(step) for step in steps] == [10, 5, 3, 3, 10, 5, 3, 10, 3]
    low, high = 0.97, 0.997
    assert [round(discount(step), 3) for step in steps if step not in (4_500, 22_501)] == [
        low, high, high, low, high, low, high
    ]  # fmt: skip
    assert agent.schedules["beta"](100_000) == 0.5


def test_without_annealing_returns_are_those_of_its_end() -> None:
    agent = rainbow_agent("bbf", Bbf, anneal_updates=0)
    assert {agent.schedules["n_step"](step) for step in (1, 1_000, 5_000)} == {3}


def test_a_horizon_cuts_returns() -> None:
    """Rewards 1, 2, 4, 8 at γ = ½; the second sequence terminates with its second step."""
    rewards = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0]])
    terminated = torch.tensor([[False] * 4, [False, True, False, False]])
    episodes = torch.tensor([[5, 5, 5, 5], [5, 5, 6, 6]])
    acts = torch.ones(2, 4, dtype=torch.bool)
    for horizon, returns, steps, discounts in (
        (4, [1 + 1 + 1 + 1, 2], [4, 2], [1 / 16, 0]),
        (3, [1 + 1 + 1, 2], [3, 2], [1 / 8, 0]),
        (2, [2, 2], [2, 2], [1 / 4, 0]),
        (1, [1, 1], [1, 1], [1 / 2, 1 / 2]),  # the end lies behind the horizon
    ):
        found = n_step_return(rewards, terminated, acts, episodes, torch.tensor(0.5), torch.tensor(float(horizon)))
        assert found.returns.tolist() == returns
        assert found.steps.tolist() == steps
        assert found.discounts.tolist() == discounts


def test_the_encoder_has_the_size_of_its_source() -> None:
    """Three stages of 3 × 3 convolutions: into 64, 128 and 128 channels, and four more of these in each."""
    encoder = ImpalaEncoder((4, 84, 84), (64, 128, 128), (3, 3, 3), (2, 2, 2), 2, 0)
    stages = [(4, 64), (64, 128), (128, 128)]
    expected = sum(9 * i * o + o + 4 * (9 * o * o + o) for i, o in stages)
    assert sum(p.numel() for p in encoder.parameters()) == expected == 1_552_192
    assert encoder.map_shape == (128, 11, 11)
    z = encoder(torch.rand(2, 4, 84, 84))
    assert z.shape == (2, 128, 11, 11)
    assert z.amin((1, 2, 3)).tolist() == [0, 0]
    assert z.amax((1, 2, 3)).tolist() == [1, 1]


@pytest.mark.parametrize(("side", "stride", "out"), [(10, 2, 5), (9, 2, 5), (11, 3, 4), (7, 1, 7), (1, 2, 1)])
def test_maps_shrink_by_pooling_alone(side: int, stride: int, out: int) -> None:
    encoder = ImpalaEncoder((2, side, side), (3,), (3,), (stride,), 1, 0)
    assert encoder.map_shape == (3, out, out)
    assert encoder(torch.rand(1, 2, side, side)).shape == (1, 3, out, out)


def test_the_encoder_in_plain_operations() -> None:
    encoder = ImpalaEncoder((2, 8, 8), (3, 4), (3, 3), (2, 1), 1, 5, rescaled=False, background=0.25)
    x = torch.rand(2, 2, 8, 8)
    maps = x - 0.25
    for conv, blocks, stride in zip(encoder.convs, encoder.blocks, (2, 1), strict=True):
        maps = F.max_pool2d(F.conv2d(maps, conv.weight, conv.bias, padding=1), 3, stride, 1)
        for block in blocks:
            inner = F.conv2d(F.relu(maps), block.conv1.weight, block.conv1.bias, padding=1)
            maps = maps + F.conv2d(F.relu(inner), block.conv2.weight, block.conv2.bias, padding=1)
    torch.testing.assert_close(encoder(x), encoder.fc(F.relu(maps).flatten(1)))


def test_filters_of_even_size_keep_the_size_of_maps_too() -> None:
    encoder = ImpalaEncoder((2, 9, 9), (3, 4), (4, 2), (2, 1), 1, 0)
    assert encoder(torch.rand(1, 2, 9, 9)).shape == (1, *encoder.map_shape) == (1, 4, 5, 5)


def test_a_residual_block_without_weights_changes_nothing() -> None:
    block = ResidualBlock(3, 3)
    for p in block.parameters():
        nn.init.zeros_(p)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(block(x), x)


def test_weights_decay_and_biases_do_not() -> None:
    """Without a gradient's pull a step leaves 1 − lr · decay of the weights: Adam's moments are no part of that."""
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.bias)
    before = layer.weight.detach().clone()
    adam = make_adamw(
        [*layer.parameters()], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.5, device=torch.device("cpu")
    )
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    adam.step()
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5))
    assert layer.bias.tolist() == [1.0, 1.0]


def test_an_update_takes_a_step_of_adamw() -> None:
    """A first step of Adam is lr in the direction of the gradient, where ε is small; decay comes before it."""
    agent = rainbow_agent("bbf", Bbf, adam_eps=1e-12, learning_rate=0.01, weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in agent.online.named_parameters()}
    agent.update(rainbow_batch(agent), schedule_at(agent, 10_000, 0))
    for name, p in agent.online.named_parameters():
        decay = 0.5 if p.ndim > 1 else 0.0
        expected = before[name] * (1 - 0.01 * decay) - 0.01 * p.grad.sign()
        clear = p.grad.abs() > 1e-8
        assert clear.any(), name
        torch.testing.assert_close(p[clear], expected[clear], msg=name)


def test_dynamics_models_have_no_batch_norm() -> None:
    """One sample's next state does not depend on the others of its batch."""
    agent = rainbow_agent("bbf", Bbf, latent=0, K=2)
    model = agent.parts["forward_dynamics"]
    assert isinstance(model, ConvDynamics)
    assert model.bn is None
    z, a = torch.rand(6, *agent.encoder.map_shape), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(model(z, a)[:1], model(z[:1], a[:1]))
    planes = F.one_hot(a, 3).float()[:, :, None, None].expand(-1, -1, *z.shape[2:])
    x = F.relu(F.conv2d(torch.cat([z, planes], 1), model.conv1.weight, model.conv1.bias, padding=1))
    x = F.relu(F.conv2d(x, model.conv2.weight, model.conv2.bias, padding=1)).flatten(1)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    torch.testing.assert_close(model(z, a).flatten(1), (x - low) / (high - low).clamp_min(1e-6))


def test_with_batch_norm_a_model_is_as_it_was() -> None:
    names = set(ConvDynamics(2, DiscreteActions(3)).state_dict())
    without = set(ConvDynamics(2, DiscreteActions(3), batch_norm=False).state_dict())
    assert names - without == {
        f"bn.{x}" for x in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"final_n_step": 11}, "final_n_step: 11 is not allowed; allowed: at most n_step, 10"),
        ({"reset_keeps": 1.5}, "reset_keeps: 1.5 is not allowed; allowed: 0 to 1"),
        ({"reset_every": -1}, "reset_every: -1 is not allowed; allowed: 0 or more"),
        ({"strides": "2,2"}, "channels, kernel_sizes, strides: "),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        pv.build("atari/pong", method="bbf", **options)
    assert str(raised.value).startswith(message)
