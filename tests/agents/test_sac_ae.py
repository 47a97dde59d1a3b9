"""SAC+AE: reconstruction and penalties by hand, the decoder's shapes, and who trains the encoder."""

from __future__ import annotations

import pytest
import torch

import playvirtual as pv
from playvirtual.agents.losses import latent_penalty, quantize, reconstruction_loss
from playvirtual.agents.networks.sac import Convolutions, Decoder
from playvirtual.agents.sac_ae import SacAe
from playvirtual.errors import InputError
from tests.agents.baseline_agents import PIXELS, sac_agent, sac_batch, schedule_at


def test_images_are_reduced_to_five_bits_and_dithered_by_hand() -> None:
    """Pixels 0 to 7 are level 0 of 32, 255 is level 31; half a level of noise is 1/64."""
    pixels = torch.tensor([0, 7, 8, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    levels = torch.tensor([0, 0, 1, 31]) / 32
    assert quantize(pixels, torch.zeros(1, 1, 2, 2)).flatten().tolist() == (levels - 0.5).tolist()
    assert quantize(pixels, torch.full((1, 1, 2, 2), 0.5)).flatten().tolist() == (levels + 1 / 64 - 0.5).tolist()


def test_reconstruction_and_penalty_by_hand() -> None:
    images = torch.zeros(2, 1, 2, 2)
    made = torch.tensor([[[[1.0, 1.0], [1.0, 3.0]]], [[[0.0, 0.0], [0.0, 2.0]]]])
    assert reconstruction_loss(made, images).tolist() == [3.0, 1.0]
    assert latent_penalty(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist() == [12.5, 2.0]


@pytest.mark.parametrize(
    ("image", "channels", "kernel_sizes", "strides"),
    [
        ((9, 84, 84), (32, 32, 32, 32), (3, 3, 3, 3), (2, 1, 1, 1)),
        ((3, 12, 12), (16,), (3,), (1,)),
        ((1, 11, 11), (4, 5), (4, 2), (3, 2)),
    ],
)
def test_the_decoder_mirrors_the_encoder(
    image: tuple[int, int, int], channels: tuple[int, ...], kernel_sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    decoder = Decoder(image, channels, kernel_sizes, strides, 5)
    assert decoder(torch.randn(2, 5)).shape == (2, *image)
    convs = Convolutions(image, channels, kernel_sizes, strides)
    assert tuple(convs(torch.rand(1, *image)).shape[1:]) == decoder.map_shape
    assert [layer.weight.shape for layer in reversed(decoder.layers)] == [layer.weight.shape for layer in convs.layers]


def sac_ae(**options: object) -> SacAe:
    agent: SacAe = sac_agent("sac-ae", SacAe, **options)
    return agent


def loss_of(agent: SacAe, weight: float) -> torch.Tensor:
    batch = sac_batch(agent)
    losses = agent.reconstruction_losses(batch.transitions, agent.draw(batch), torch.zeros(5, *PIXELS))
    return losses["reconstruction"].mean() + weight * losses["latent"].mean()


def test_the_losses_are_of_the_whole_image_and_of_the_encoders_latent_state() -> None:
    agent = sac_ae()
    batch = sac_batch(agent)
    dither = torch.rand(5, *PIXELS)
    losses = agent.reconstruction_losses(batch.transitions, agent.draw(batch), dither)
    z = agent.encoder(batch.transitions.observations / 255)
    target = (batch.transitions.observations // 8 + dither) / 32 - 0.5
    torch.testing.assert_close(losses["reconstruction"], (agent.decoder(z) - target).square().mean((1, 2, 3)))
    torch.testing.assert_close(losses["latent"], (z * z).sum(1) / 2)


def test_the_decoders_gradient_reaches_the_encoder_and_the_actors_does_not() -> None:
    agent = sac_ae()
    loss_of(agent, 0.0).backward()  # without the latent penalty, whose gradient reaches the encoder by itself
    for part in (agent.encoder, agent.decoder):
        assert all(p.grad is not None and bool(p.grad.any()) for p in part.parameters())
    agent.encoder.zero_grad(set_to_none=True)
    batch = sac_batch(agent)
    losses = agent.actor_losses(batch.transitions, agent.draw(batch))
    (losses["actor"] + losses["alpha"]).mean().backward()
    assert all(p.grad is None for p in agent.encoder.parameters())
    assert all(p.grad is not None for p in agent.actor.parameters())


def test_the_latent_penalty_shrinks_the_latent_state() -> None:
    norms = []
    for weight in (0.0, 10.0):
        agent = sac_ae(latent_weight=weight, learning_rate=0.02, adam_eps=1e-8)
        batch = sac_batch(agent)
        for _ in range(20):
            agent.update_decoder(batch.transitions, agent.draw(batch), torch.zeros(5, *PIXELS))
        norms.append(agent.encoder(batch.transitions.observations / 255).square().sum(1).mean().item())
    assert norms[1] < 0.5 * norms[0]


def test_the_decoders_weights_decay_and_the_encoders_do_not() -> None:
    """The optimizers as they are made: Adam adds weight_decay · w to the gradient of w."""
    agent = sac_ae(decoder_weight_decay=0.3, decoder_learning_rate=0.07)
    decay = {name: optimizer.param_groups[0]["weight_decay"] for name, optimizer in agent.optimizers.items()}
    assert decay == {"critic": 0, "actor": 0, "temperature": 0, "reconstruction": 0, "decoder": 0.3}
    assert agent.optimizers["decoder"].param_groups[0]["lr"] == 0.07
    assert agent.optimizers["reconstruction"].param_groups[0]["lr"] == agent.config.learning_rate
    owned = {id(p) for p in agent.optimizers["decoder"].param_groups[0]["params"]}
    assert owned == {id(p) for p in agent.decoder.parameters()}


def test_reconstruction_is_learned() -> None:
    """Of images whose upper or lower half is white."""
    agent = sac_ae(adam_eps=1e-8, learning_rate=1e-2, decoder_learning_rate=1e-2)
    halves = torch.zeros(5, *PIXELS, dtype=torch.uint8)
    halves[:2, :, :4], halves[2:, :, 4:] = 255, 255
    batch = sac_batch(agent).transitions._replace(observations=halves)
    randoms = agent.draw(sac_batch(agent))
    losses = [agent.update_decoder(batch, randoms, torch.zeros(5, *PIXELS)) for _ in range(80)]
    assert losses[-1]["loss_reconstruction"] < 0.4 * losses[0]["loss_reconstruction"]


def test_an_update_moves_everything_and_logs_both_losses() -> None:
    agent = sac_ae()
    before = {name: {n: p.clone() for n, p in part.named_parameters()} for name, part in agent.parts.items()}
    metrics = agent.update(sac_batch(agent), schedule_at(agent, 0, 0)).metrics
    assert {"loss_reconstruction", "loss_latent", "loss_critic", "loss_actor"} <= metrics.keys()
    for name, part in agent.parts.items():
        assert any(not torch.equal(p, before[name][n]) for n, p in part.named_parameters()), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_weight": -1}, "latent_weight: -1.0 is not allowed; allowed: 0 or more"),
        ({"encoder_from": "runs/a"}, "encoder_from: 'runs/a' is not allowed with sac-ae, whose own loss trains"),
        ({"views": 2}, "option: 'views' is not one of the agent sac-ae; allowed: with drq-sac \\(method drq\\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        pv.build("toy/reach", method="sac-ae", **options)
    assert "\n" not in str(raised.value)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(
        InputError, match="method: 'sac-ae' is not for 'toy/catch' with discrete actions; allowed: cont"
    ):
        pv.build("toy/catch", method="sac-ae")
