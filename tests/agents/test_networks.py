"""Noisy layers, the dueling head, sizes."""

import pytest
import torch

from playvirtual.agents.agent import num_trainable_parameters
from playvirtual.agents.networks.rainbow import DuelingHead, NoisyLinear, RainbowEncoder, scale_gradient
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.build import build
from playvirtual.errors import InputError
from playvirtual.method import DiscreteActions
from playvirtual.method.target_network import make_target, soft_update


def pong(method: str, **options: object) -> Rainbow:
    config = build("atari/pong", method=method, preset="reference", **options)
    return Rainbow(config, (4, 84, 84), DiscreteActions(6))


def test_parameter_counts_for_pong() -> None:
    """The paper's 3.91 M and 3.83 M without the released code's dead weight."""
    assert num_trainable_parameters(pong("playvirtual")) == 3_891_357
    assert num_trainable_parameters(pong("spr")) == 3_813_917
    assert sum(p.numel() for p in pong("playvirtual").online["backward_dynamics"].parameters()) == 77_440


def test_methods_have_the_networks_they_need() -> None:
    assert set(pong("rl").online) == {"encoder", "head"}
    assert set(pong("spr").online) == {"encoder", "head", "predictor", "forward_dynamics"}
    assert set(pong("spr-bdm").online) == set(pong("playvirtual").online)
    assert set(pong("playvirtual", K=0).online) == {"encoder", "head"}
    assert set(pong("playvirtual", M=0).online) == {"encoder", "head", "predictor", "forward_dynamics"}


def test_encoder_gives_maps_in_zero_to_one() -> None:
    encoder = RainbowEncoder((4, 84, 84), (32, 64, 64), (8, 4, 3), (4, 2, 1), latent=0)
    z = encoder(torch.rand(2, 4, 84, 84))
    assert z.shape == (2, 64, 7, 7)
    assert z.flatten(1).amin(1).tolist() == [0, 0]
    assert z.flatten(1).amax(1).tolist() == [1, 1]


def test_kernels_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match=r"kernel_sizes: \(8,\) with strides \(1,\) do not fit into an image of 4 × 4"):
        RainbowEncoder((1, 4, 4), (8,), (8,), (1,), latent=0)


def test_an_encoder_subtracts_the_background_and_a_dark_one_changes_nothing() -> None:
    shades = [RainbowEncoder((1, 4, 4), (8,), (3,), (1,), latent=5, background=shade) for shade in (0.0, 0.75)]
    shades[1].load_state_dict(shades[0].state_dict())
    images = torch.rand(3, 1, 4, 4)
    assert torch.equal(shades[1](images), shades[0](images - 0.75))


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_noisy_layer_equals_its_definition(rows: int) -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(5, 3, sigma=0.5)
    layer.resample()
    x = torch.randn(rows, 5)
    epsilon = torch.outer(layer.noise_out, layer.noise_in)
    weight = layer.weight_mu + layer.weight_sigma * epsilon
    bias = layer.bias_mu + layer.bias_sigma * layer.noise_out
    torch.testing.assert_close(layer(x), x @ weight.T + bias)
    torch.testing.assert_close(layer(x, noisy=False), x @ layer.weight_mu.T + layer.bias_mu)
    assert layer.weight_sigma[0, 0].item() == pytest.approx(0.5 / 5**0.5)
    assert layer.bias_sigma[0].item() == pytest.approx(0.5 / 3**0.5)


def test_noise_is_signed_square_root_of_a_gaussian() -> None:
    layer = NoisyLinear(20_000, 1, sigma=0.5)
    layer.resample(torch.Generator().manual_seed(0))
    assert layer.noise_in.mean().abs() < 0.03
    assert float(layer.noise_in.square().mean()) == pytest.approx((2 / torch.pi) ** 0.5, abs=0.02)  # E|N(0, 1)|


def test_dueling_head_centres_the_advantages() -> None:
    head = DuelingHead(8, actions=3, hidden=4, atoms=5, sigma=0.5)
    x = torch.randn(2, 8)
    torch.testing.assert_close(
        head(x, noisy=False).mean(1), head.value.out(torch.relu(head.value.hidden(x, False)), False)
    )


@pytest.mark.parametrize("noisy", [True, False])
def test_a_batch_is_valued_like_its_rows_one_by_one(noisy: bool) -> None:
    head = DuelingHead(8, actions=3, hidden=4, atoms=5, sigma=0.5)
    head.resample(torch.Generator().manual_seed(0))
    x = torch.randn(20, 8)
    torch.testing.assert_close(head(x, noisy), torch.cat([head(row[None], noisy) for row in x]))


def test_autocast_does_not_round_logits() -> None:
    torch.manual_seed(0)
    head = DuelingHead(16, actions=3, hidden=256, atoms=51, sigma=0.1)
    z = torch.rand(32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(z)
    assert logits.dtype == torch.float32
    assert (logits.bfloat16() != logits).float().mean() > 0.9  # most have more digits than bfloat16
    torch.testing.assert_close(logits, head(z), atol=2e-2, rtol=0)


def test_projection_is_the_first_layers_without_noise() -> None:
    head = DuelingHead(8, actions=3, hidden=4, atoms=5, sigma=0.5)
    head.resample()
    x = torch.randn(2, 2, 2, 2)
    expected = torch.cat([head.value.hidden(x.flatten(1), False), head.advantage.hidden(x.flatten(1), False)], 1)
    torch.testing.assert_close(head.project(x), expected)


def test_gradient_scale_changes_the_gradient_alone() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = scale_gradient(x, 0.25)
    y.sum().backward()
    assert y.tolist() == [2.0, 3.0]
    assert x.grad is not None
    assert x.grad.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(("tau", "expected"), [(1.0, 5.0), (0.0, 1.0), (0.25, 2.0)])
def test_target_takes_tau_from_the_online_network(tau: float, expected: float) -> None:
    online = torch.nn.Linear(1, 1)
    target = make_target(online)
    torch.nn.init.constant_(online.weight, 5.0)
    torch.nn.init.constant_(target.weight, 1.0)
    soft_update(target, online, tau)
    assert target.weight.item() == pytest.approx(expected)
    assert not target.weight.requires_grad
