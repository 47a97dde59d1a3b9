"""What Rainbow draws for an update: a view for every role, actions for every trajectory, noise for every layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from playvirtual.agents.rainbow import Rainbow
from playvirtual.method import RandomInputs
from playvirtual.replay.batches import JoinedObservations
from tests.agents.small_rainbow import NUM_ACTIONS, schedule_at, small_agent, small_batch, small_config
from tests.independence import look_independent

B, K, M, PAD = 1_500, 3, 2, 2


def drawn(method: str = "playvirtual", **options: Any) -> tuple[RandomInputs, Tensor]:
    """What is drawn for a large batch, and its recorded actions (B, K)."""
    agent = small_agent(small_config(method, **options))
    batch = small_batch(agent, B=B)
    return agent.draw(batch), batch.sequences.actions


def by_role(inputs: RandomInputs, name: str) -> Tensor:
    """(roles, B, …): what the online encoder sees, and s_{t+n}, recorded states and views of s_t for the target's."""
    parts = (inputs.online, inputs.rl, inputs.last, inputs.target)
    online, rl, last, target = (getattr(randoms, name) for randoms in parts)
    states = K + bool(len(last))
    recorded = target[B : B + B * states].unflatten(0, (B, states)).transpose(0, 1)
    views = target[B + B * states :].unflatten(0, (B, -1)).transpose(0, 1)
    return torch.cat([torch.stack([online, rl, target[:B]]), *([last[None]] if len(last) else []), recorded, views])


@pytest.mark.parametrize(("options", "more"), [({}, 0), ({"real_cycle": True}, 1), ({"backward_prediction": True}, 2)])
def test_every_image_of_every_role_has_a_shift_and_an_intensity_of_its_own(options: dict[str, Any], more: int) -> None:
    inputs, _ = drawn(**options)
    noise = by_role(inputs, "noise")
    assert noise.shape == (3 + K + M + more, B)
    assert len(noise.unique()) > 0.99 * noise.numel()  # float32 has twins among so many
    assert look_independent(noise)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.std()) == pytest.approx(1, abs=0.05)
    offsets = by_role(inputs, "offsets")  # (roles, B, 2)
    assert look_independent(offsets.permute(0, 2, 1).flatten(0, 1))  # down and right too
    shares = torch.bincount(offsets.flatten(), minlength=2 * PAD + 1) / offsets.numel()
    assert shares.tolist() == pytest.approx([1 / (2 * PAD + 1)] * (2 * PAD + 1), abs=0.02)


def test_virtual_actions_are_independent_over_samples_trajectories_and_steps() -> None:
    inputs, _ = drawn()
    assert inputs.virtual is not None
    assert inputs.virtual.shape == (B, M, K)
    shares = torch.bincount(inputs.virtual.flatten(), minlength=NUM_ACTIONS) / inputs.virtual.numel()
    assert shares.tolist() == pytest.approx([1 / NUM_ACTIONS] * NUM_ACTIONS, abs=0.03)
    for action in range(NUM_ACTIONS):
        rows = (inputs.virtual == action).permute(1, 2, 0).flatten(0, 1)  # (M·K, B)
        assert look_independent(rows)


def test_perturbed_actions_are_replaced_with_probability_sigma_each_on_its_own() -> None:
    """Two of three replacements differ from the recorded action."""
    inputs, recorded = drawn("playvirtual-perturbed", sigma=0.6)
    assert inputs.virtual is not None
    changed = inputs.virtual != recorded[:, None]  # (B, M, K)
    assert float(changed.double().mean()) == pytest.approx(0.6 * 2 / 3, abs=0.03)
    assert look_independent(changed.permute(1, 2, 0).flatten(0, 1))


def test_two_updates_draw_anew() -> None:
    agent = small_agent(small_config())
    batch = small_batch(agent)
    first, second = agent.draw(batch), agent.draw(batch)
    for one, other in zip(first[:3], second[:3], strict=True):
        assert not torch.isin(one.noise, other.noise).any()
    assert not torch.equal(first.virtual, second.virtual)  # type: ignore[arg-type]


def noises(head: torch.nn.Module) -> list[Tensor]:
    return [value.clone() for value in head.buffers()]


def test_every_update_draws_noise_for_every_layer() -> None:
    """Also where the target network, which takes the noise over, is not updated."""
    agent = small_agent(small_config("rl"))
    seen: list[Tensor] = []
    for number in range(3):
        agent.update(small_batch(agent), schedule_at(agent, 0, number))
        seen += noises(agent.head)
    assert len(seen) == 3 * 8  # input and output of two layers of two streams
    values = torch.cat(seen)
    assert len(values.unique()) == len(values)


def test_the_noise_comes_from_the_agents_generator() -> None:
    def after_an_update(seed: int) -> Tensor:
        agent = small_agent(small_config("rl"))
        torch.manual_seed(seed)
        agent.update(small_batch(agent), schedule_at(agent, 0, 0))
        return torch.cat(noises(agent.head))

    assert torch.equal(after_an_update(1), after_an_update(2))


def test_the_target_heads_noise_is_that_of_its_last_update() -> None:
    agent = small_agent(small_config("rl"))
    start = torch.cat(noises(agent.target_head))
    agent.update(small_batch(agent), schedule_at(agent, 0, 0))
    assert torch.equal(torch.cat(noises(agent.target_head)), start)
    agent.update(small_batch(agent), schedule_at(agent, 0, 1))  # is followed by one of the target network
    copied = torch.cat(noises(agent.head))
    agent.update(small_batch(agent), schedule_at(agent, 0, 2))
    assert torch.equal(torch.cat(noises(agent.target_head)), copied)
    assert not torch.isin(torch.cat(noises(agent.head)), copied).any()


def views_of(agent: Rainbow, name: str) -> list[Tensor]:
    """Keeps what an encoder of the agent sees in updates."""
    seen: list[Tensor] = []
    agent.parts[name].register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].clone()))
    return seen


def test_no_encoder_sees_an_image_as_it_is_and_no_view_is_seen_twice() -> None:
    """Even if all images of the batch are the same."""
    agent = small_agent(small_config(real_cycle=True))
    batch = small_batch(agent)
    image = batch.next_observations[0]
    observations = image.expand_as(batch.sequences.observations)
    batch = batch._replace(
        sequences=batch.sequences._replace(observations=observations),
        next_observations=image.expand_as(batch.next_observations),
    )
    seen = {name: views_of(agent, name) for name in ("encoder", "target_encoder")}
    agent.update(batch, schedule_at(agent, 0, 0))
    online, target = torch.cat(seen["encoder"]), torch.cat(seen["target_encoder"])
    assert (len(online), len(target)) == (2 * 5, 5 * (1 + K + M + 1))
    views = torch.cat([online, target, image[None] / 255.0]).flatten(1)
    assert len(views.unique(dim=0)) == len(views)


def test_the_target_encoder_sees_the_images_that_were_read_in_one_piece() -> None:
    """The losses are those of the same observations in two pieces, bit by bit, and nothing is put together again."""
    agent = small_agent(small_config(real_cycle=True))
    batch = small_batch(agent)
    sequences, after = batch.sequences.observations, batch.next_observations
    images = torch.cat([sequences.flatten(0, 1), after])
    views = images[: 5 * (K + 1)].unflatten(0, (5, K + 1)), images[5 * (K + 1) :]
    recorded = batch.sequences._replace(observations=views[0])
    joined = JoinedObservations(images, *views)
    whole = batch._replace(sequences=recorded, next_observations=views[1], joined=joined)
    inputs = agent.draw(batch)
    expected, found = agent.losses(batch, inputs), agent.losses(whole, inputs)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    black = whole._replace(joined=joined._replace(images=torch.zeros_like(images)))
    seen = views_of(agent, "target_encoder")
    agent.losses(black, inputs)
    assert not seen[0].any()


@pytest.mark.parametrize("method", ["playvirtual", "playvirtual-every-step", "playvirtual-latent"])
def test_target_networks_get_no_gradient(method: str) -> None:
    agent = small_agent(small_config(method))
    agent.update(small_batch(agent), schedule_at(agent, 100, 0))
    for part in (agent.target_encoder, agent.target_head):
        assert all(p.grad is None and not p.requires_grad for p in part.parameters())
    learned = {id(p) for group in agent.optimizer.param_groups for p in group["params"]}
    assert learned == {id(p) for p in agent.online.parameters()}
