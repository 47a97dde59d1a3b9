"""DER and OTR: their schedules step by step, their targets by hand, and the head that they share with DrQ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.agents.agent import Schedule
from playvirtual.agents.efficient_rainbow import EfficientRainbow, EpsilonGreedyRainbow, Otr, linear_epsilon
from playvirtual.agents.losses import project_distribution
from playvirtual.agents.networks.rainbow import NoisyLinear, QHead
from tests.agents.baseline_agents import IMAGE, NUM_ACTIONS, rainbow_agent, rainbow_batch, schedule_at


@pytest.mark.parametrize(
    ("steps", "epsilon"),
    [(-500, 1.0), (0, 1.0), (1, 0.99802), (250, 0.505), (499, 0.01198), (500, 0.01), (9_000, 0.01)],
)
def test_epsilon_falls_on_a_straight_line(steps: int, epsilon: float) -> None:
    """From 1 to 0.01 over 500 steps: 0.00198 per step."""
    assert linear_epsilon(steps, 500, 0.01) == pytest.approx(epsilon, abs=1e-12)


def test_otr_explores_by_the_schedule_of_its_configuration() -> None:
    """On Atari 20,000 steps of random play, then 50,000 of the decay: half of it is done after 45,000."""
    config = pv.build("atari/pong", method="otr")
    agent = rainbow_agent("otr", Otr, "atari/pong", hidden=4, channels="2", kernel_sizes="3", strides="3")
    assert config.replay.learning_starts == 20_000
    epsilon = agent.schedules["epsilon"]
    assert [epsilon(step) for step in (0, 20_000, 45_000, 70_000, 100_000)] == pytest.approx([1, 1, 0.505, 0.01, 0.01])


def test_der_explores_by_noise_alone() -> None:
    agent = rainbow_agent("der", EfficientRainbow)
    assert "epsilon" not in agent.schedules
    observations = torch.randint(256, (1, *IMAGE), dtype=torch.uint8)
    agent.head.resample(agent.generator)
    noisy = agent.action_values(observations, explore=True)
    assert not torch.equal(noisy, agent.action_values(observations))
    assert not isinstance(agent, EpsilonGreedyRainbow)


@pytest.mark.parametrize("method", ["der", "otr"])
def test_the_target_network_is_copied_every_so_many_updates(method: str) -> None:
    """With a period of 3: after the third and the sixth update, and then it equals the online network."""
    agent = rainbow_agent(method, None, target_period=3)
    copied = []
    for number in range(7):
        before = agent.target_encoder.convs[0].weight.clone()
        agent.update(rainbow_batch(agent, seed=number), schedule_at(agent, 10 + number, number))
        after = agent.target_encoder.convs[0].weight
        if not torch.equal(before, after):
            copied.append(number + 1)
            assert torch.equal(after, agent.encoder.convs[0].weight)
    assert copied == [3, 6]


@pytest.mark.parametrize(("method", "updates", "steps"), [("der", 2_000, 2_000), ("otr", 4_000, 500)])
def test_target_periods_on_atari_in_updates_and_agent_steps(method: str, updates: int, steps: int) -> None:
    config = pv.build("atari/pong", method=method).agent
    assert config.target_period == updates
    assert updates / config.updates_per_step == steps


def test_an_update_sets_the_share_of_random_actions_that_acting_uses() -> None:
    agent = rainbow_agent("otr", Otr, learning_starts=20, epsilon_decay_steps=100, epsilon_end=0.2)
    observations = torch.randint(256, (4_000, *IMAGE), dtype=torch.uint8)
    greedy = agent.act(observations)
    for step, epsilon in ((20, 1.0), (70, 0.6), (120, 0.2)):
        agent.update(rainbow_batch(agent), schedule_at(agent, step, 0))
        assert float(agent.epsilon) == pytest.approx(epsilon)
        greedy = agent.act(observations)
        other = (agent.act(observations, explore=True) != greedy).double().mean().item()
        # A random action is another one in two of three cases.
        assert other == pytest.approx(epsilon * (NUM_ACTIONS - 1) / NUM_ACTIONS, abs=0.04)


def test_the_share_of_random_actions_is_part_of_the_state() -> None:
    agent, other = (rainbow_agent("otr", Otr, seed=seed) for seed in (0, 1))
    agent.update(rainbow_batch(agent), schedule_at(agent, 1_000, 0))
    other.load_state_dict(agent.state_dict())
    assert float(other.epsilon) == float(agent.epsilon) < 1


def test_der_draws_noise_for_both_networks_in_every_update() -> None:
    agent = rainbow_agent("der", EfficientRainbow)
    agent.update(rainbow_batch(agent), schedule_at(agent, 0, 0))
    online, target = (list(head.buffers()) for head in (agent.head, agent.target_head))
    first = [noise.clone() for noise in (*online, *target)]
    assert not any(torch.equal(a, b) for a, b in zip(online, target, strict=True))
    agent.update(rainbow_batch(agent), schedule_at(agent, 1, 1))
    assert not any(torch.equal(a, b) for a, b in zip(first, (*online, *target), strict=True))


def test_otr_values_the_action_that_its_target_network_chooses() -> None:
    """The loss of each sample by loops, with a target network whose choice differs from the online one's."""
    agent = rainbow_agent("otr", Otr)
    batch = rainbow_batch(agent)
    losses = agent.losses(batch, agent.draw(batch))
    support = agent.support.tolist()
    online = agent.head(agent.encoder(batch.sequences.observations[:, 0] / 255))
    target = agent.target_head(agent.target_encoder(batch.next_observations / 255)).softmax(-1)
    double = agent.head(agent.encoder(batch.next_observations / 255)).softmax(-1)
    choices, differ = [], 0
    for b in range(len(batch.returns)):
        values = [sum(p * x for p, x in zip(row, support, strict=True)) for row in target[b].tolist()]
        choices.append(values.index(max(values)))
        theirs = [sum(p * x for p, x in zip(row, support, strict=True)) for row in double[b].tolist()]
        differ += choices[-1] != theirs.index(max(theirs))
    assert differ
    chosen = torch.stack([target[b, a] for b, a in enumerate(choices)])
    wanted = project_distribution(batch.returns, batch.discounts, chosen, agent.support)
    taken = torch.stack([online[b, a] for b, a in enumerate(batch.sequences.actions[:, 0].tolist())])
    loss = -(wanted * taken.log_softmax(1)).sum(1)
    torch.testing.assert_close(losses["rl"], loss)
    torch.testing.assert_close(losses["priority"], loss.detach())


def test_the_priority_of_der_is_its_cross_entropy() -> None:
    agent = rainbow_agent("der", EfficientRainbow)
    batch = rainbow_batch(agent)
    losses = agent.losses(batch, agent.draw(batch))
    assert torch.equal(losses["priority"], losses["rl"].detach())
    assert not losses["priority"].requires_grad


def test_images_are_shown_as_they_are() -> None:
    """Two draws of random numbers change nothing, since nothing is augmented."""
    for method in ("der", "otr"):
        agent = rainbow_agent(method, None)
        batch = rainbow_batch(agent)
        one, other = (agent.losses(batch, agent.draw(batch))["rl"] for _ in range(2))
        assert torch.equal(one, other)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_the_head_by_hand(dueling: bool, sigma: float) -> None:
    torch.manual_seed(0)
    head = QHead(6, 3, 5, 2, sigma=sigma, dueling=dueling)
    head.resample(torch.Generator().manual_seed(1))
    noisy = [m for m in head.modules() if isinstance(m, NoisyLinear)]
    assert len(noisy) == (0 if not sigma else 3 if dueling else 2)
    z = torch.randn(4, 6)

    def layer(module: Any, x: Tensor) -> Tensor:
        weight, bias = module.weights() if sigma else (module.weight, module.bias)
        return x @ weight.T + bias

    hidden = layer(head.hidden, z).clamp_min(0)
    advantage = layer(head.advantage, hidden).reshape(4, 3, 2)
    expected = advantage
    if dueling:
        value = layer(head.value, hidden)
        center = (advantage[:, 0] + advantage[:, 1] + advantage[:, 2]) / 3
        expected = torch.stack([value + advantage[:, a] - center for a in range(3)], 1)
    torch.testing.assert_close(head(z), expected)
    torch.testing.assert_close(head(z, noisy=False) == head(z), torch.full((4, 3, 2), not sigma))


def test_encoders_are_rescaled_only_beside_a_dynamics_model() -> None:
    observations = torch.randint(256, (2, *IMAGE), dtype=torch.uint8)
    alone, beside = (rainbow_agent("der", EfficientRainbow, K=K).encode(observations) for K in (0, 2))
    assert beside.flatten(1).amax(1).tolist() == pytest.approx([1.0, 1.0])
    assert alone.flatten(1).amax(1).tolist() != pytest.approx([1.0, 1.0])


def test_schedules_count_agent_steps_where_frames_are_the_unit() -> None:
    """20 agent steps of 4 frames each before learning starts."""
    agent = rainbow_agent(
        "otr",
        Otr,
        learning_starts=20,
        epsilon_decay_steps=100,
        epsilon_end=0.0,
        step_unit="environment",
        action_repeat=4,
    )
    schedule = Schedule(agent.schedules)
    schedule.set(80)
    assert float(schedule["epsilon"]) == 1.0
    schedule.set(130)
    assert float(schedule["epsilon"]) == pytest.approx(0.5)
