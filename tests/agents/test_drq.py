"""DrQ: averaged targets and losses beside SAC's, shifted images, and the DQN's loss by loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

import playvirtual as pv
from playvirtual.agents.agent import make_agent
from playvirtual.agents.drq import DrqDqn, DrqSac
from playvirtual.agents.sac import Sac
from playvirtual.errors import InputError
from playvirtual.replay import ReplayBuffer
from playvirtual.replay.augmentation import RandomShift
from tests.agents.baseline_agents import rainbow_agent, rainbow_batch, sac_agent, sac_batch, schedule_at


def drq_sac(**options: object) -> DrqSac:
    agent: DrqSac = sac_agent("drq", DrqSac, shift_pad=2, **options)
    return agent


def test_one_view_each_is_plain_sac() -> None:
    """K = M = 1: the losses of SAC on the same shifted images, bit by bit."""
    agent = drq_sac(views=1, target_views=1)
    batch = sac_batch(agent)
    randoms = agent.draw(batch)
    averaged, plain = (
        agent.critic_losses(batch.transitions, randoms),
        Sac.critic_losses(agent, batch.transitions, randoms),
    )
    assert averaged.keys() == plain.keys()
    assert all(torch.equal(averaged[name], plain[name]) for name in plain)
    actor, plain = agent.actor_losses(batch.transitions, randoms), Sac.actor_losses(agent, batch.transitions, randoms)
    assert all(torch.equal(actor[name], plain[name]) for name in plain)


def test_targets_and_losses_are_means_over_views() -> None:
    """Each view by itself through plain SAC, then averaged: 2 views of s_t, 3 of s_{t+1}."""
    agent = drq_sac(views=2, target_views=3)
    batch = sac_batch(agent).transitions
    randoms = agent.draw(sac_batch(agent))
    B = len(batch.actions)
    assert [len(x) for x in randoms[:4]] == [2 * B, 3 * B, B, 3 * B]
    losses = agent.critic_losses(batch, randoms)
    views = [
        randoms._replace(next_offsets=randoms.next_offsets[v * B : (v + 1) * B], offsets=randoms.offsets[:B])._replace(
            next_noise=randoms.next_noise[v * B : (v + 1) * B]
        )
        for v in range(3)
    ]
    targets = [Sac.critic_losses(agent, batch, view)["target"] for view in views]
    assert not torch.allclose(targets[0], targets[1])
    target = sum(targets) / 3
    torch.testing.assert_close(losses["target"], target)
    expected = torch.zeros(B)
    for v in range(2):
        images = agent.augment.crop(batch.observations, randoms.offsets[v * B : (v + 1) * B])
        q1, q2 = agent.critic(images, batch.actions)
        expected += ((q1 - target) ** 2 + (q2 - target) ** 2) / 2
    torch.testing.assert_close(losses["critic"], expected)


def test_the_actor_learns_from_the_first_view() -> None:
    agent = drq_sac(views=2, target_views=2)
    batch = sac_batch(agent).transitions
    randoms = agent.draw(sac_batch(agent))
    first = randoms._replace(offsets=randoms.offsets[: len(batch.actions)])
    expected = Sac.actor_losses(agent, batch, first)
    assert torch.equal(agent.actor_losses(batch, randoms)["actor"], expected["actor"])


@pytest.mark.parametrize("method", ["drq", "drq-virtual"])
def test_convolutions_start_orthogonal_as_a_whole(method: str) -> None:
    """Filters of a layer, or where there are more of them than weights in one, the weights' places: gain √2."""
    config = pv.build("toy/reach", method=method, device="cpu", channels="4,40", kernel_sizes="3,2", strides="2,1")
    torch.manual_seed(0)
    agent: DrqSac = make_agent(config, (3, 12, 12), spaces.Box(-1.0, 1.0, (2,), np.float32), torch.device("cpu"), 1)
    for layer, size in zip(agent.encoder.convs.layers, (4, 16), strict=True):
        weight = layer.weight.detach().flatten(1)
        gram = weight @ weight.T if size == 4 else weight.T @ weight
        torch.testing.assert_close(gram, 2 * torch.eye(size), atol=1e-5, rtol=0)
    copies = [agent.target_critic.encoder, *agent.momentum.values()][: 2 if method == "drq-virtual" else 1]
    for copy in copies:
        for name, p in agent.encoder.named_parameters():
            assert torch.equal(copy.get_parameter(name), p)


def test_shifts_keep_the_size_and_repeat_the_border() -> None:
    image = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5)
    augment = RandomShift(2, 0.0)
    padded = torch.nn.ReplicationPad2d(2)(image.float())
    for down, right in ((0, 0), (2, 2), (4, 1)):
        expected = padded[..., down : down + 5, right : right + 5] / 255
        torch.testing.assert_close(augment.crop(image, torch.tensor([[down, right]])), expected)
    torch.testing.assert_close(augment.center(image), image / 255)


def drq_dqn(**options: object) -> DrqDqn:
    agent: DrqDqn = rainbow_agent("drq", DrqDqn, shift_pad=0, intensity_scale=0.0, **options)
    return agent


def test_the_loss_of_the_dqn_by_loops() -> None:
    """The online network chooses, the target network values, Huber's loss of the difference."""
    agent = drq_dqn()
    batch = rainbow_batch(agent)
    losses = agent.losses(batch, agent.draw(batch))
    now = agent.action_values(batch.sequences.observations[:, 0])
    later = agent.action_values(batch.next_observations)
    target = agent.target_head(agent.target_encoder(batch.next_observations / 255))[..., 0]
    differ = 0
    for b, action in enumerate(batch.sequences.actions[:, 0].tolist()):
        best = int(later[b].argmax())
        differ += best != int(target[b].argmax())
        error = abs(float(batch.returns[b] + batch.discounts[b] * target[b, best] - now[b, action]))
        expected = 0.5 * error**2 if error <= 1 else error - 0.5
        assert losses["rl"][b].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert float(losses["q"][b]) == pytest.approx(float(now[b].max()), rel=1e-4)
    assert differ  # so that choosing by the target network would be seen
    assert losses["rl"].requires_grad


def test_batches_are_drawn_uniformly() -> None:
    """With an exponent of 0 every priority is 1, whatever the losses are, and every importance weight is."""
    agent = drq_dqn()
    replay = ReplayBuffer(64, (2, 9, 9), 1, None)
    sampler = agent.make_sampler(replay, torch.Generator().manual_seed(0))
    frame = torch.zeros(2, 9, 9, dtype=torch.uint8).numpy()
    for _ in range(40):
        replay.add_obs(frame)
        sampler.on_append()
        replay.add_transition(0, 0.0, terminated=False)
    schedule = schedule_at(agent, 100, 0)
    batch = sampler.sample(schedule)
    sampler.update_priorities(batch, torch.linspace(0.0, 50.0, len(batch.weights)))
    assert {*sampler.priorities.tolist()} == {0.0, 1.0}
    assert torch.equal(sampler.sample(schedule).weights, torch.ones(len(batch.weights)))


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("toy/reach", {"crop_size": 10}, "crop_size: 10 is not allowed; allowed: image_size, 12, since shifts keep it"),
        ("toy/reach", {"views": 0}, "views: 0 is not allowed; allowed: 1 or more"),
        ("toy/catch", {"atoms": 51}, "atoms: 51 is not allowed; allowed: 1$"),
        ("toy/catch", {"noisy_sigma": 0.1}, "noisy_sigma: 0.1 is not allowed; allowed: 0$"),
        ("toy/catch", {"views": 2}, "option: 'views' is not one of toy/catch, which has discrete actions"),
    ],
)
def test_bad_options_are_named(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        pv.build(task, method="drq", **options)
    assert "\n" not in str(raised.value)
