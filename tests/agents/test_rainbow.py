"""What each method trains, what it leaves alone, and which methods are the same thing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from playvirtual.agents.agent import Schedule
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.build import build
from playvirtual.config.hyperparameters import METHODS
from playvirtual.method import DiscreteActions, gaussian_ramp_up
from playvirtual.replay.batches import RainbowBatch, SequenceBatch

SMALL: dict[str, Any] = {"K": 3, "hidden": 16, "channels": "8,8,8", "batch_size": 5}


def agent_of(method: str, seed: int = 0, **options: Any) -> Rainbow:
    settings = {**SMALL, **options}
    if method == "rl":
        settings.pop("K")
    config = build("atari/pong", method=method, **settings)
    torch.manual_seed(seed)
    return Rainbow(config, (4, 84, 84), DiscreteActions(3), generator=torch.Generator().manual_seed(seed))


def batch_of(K: int, seed: int = 0) -> RainbowBatch:
    g = torch.Generator().manual_seed(seed)
    B = 5
    mask = torch.ones(B, K + 1)
    mask[1, 2:] = 0
    weights = torch.rand(B, generator=g) + 0.1
    sequences = SequenceBatch(
        positions=torch.arange(B),
        observations=torch.randint(256, (B, K + 1, 4, 84, 84), generator=g, dtype=torch.uint8),
        actions=torch.randint(3, (B, max(K, 1)), generator=g),
        mask=mask,
    )
    return RainbowBatch(
        sequences=sequences,
        weights=weights,
        returns=torch.randn(B, generator=g),
        discounts=torch.full((B,), 0.9),
        next_observations=torch.randint(256, (B, 4, 84, 84), generator=g, dtype=torch.uint8),
    )


def schedule_at(step: int, *due: str) -> Schedule:
    """λ_cyc of a ramp over 100 steps; by default the target network is due."""
    schedule = Schedule({"lambda_cyc": lambda i: float(gaussian_ramp_up(i, 100))})
    schedule.set(step)
    schedule.due = frozenset(due or ("target",))
    return schedule


def reached(agent: Rainbow, loss: Tensor) -> dict[str, bool]:
    """Which networks a loss gives gradients to."""
    agent.optimizer.zero_grad(set_to_none=True)
    loss.mean().backward(retain_graph=True)
    return {
        name: any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())
        for name, module in agent.online.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_what_the_method_says(method: str) -> None:
    agent = agent_of(method)
    batch = batch_of(agent.objective.K)
    losses = agent.losses(batch, agent.draw(batch))
    rl = reached(agent, losses["rl"])
    assert {name for name, hit in rl.items() if hit} == {"encoder", "head"}
    if method == "rl":
        assert not losses["pred"].any()
        assert not losses["cyc"].any()
        return
    pred = reached(agent, losses["pred"])
    assert {name for name, hit in pred.items() if hit} == {"encoder", "head", "predictor", "forward_dynamics"}
    if method in ("spr", "spr-bdm-prediction"):
        assert not losses["cyc"].any()
    if method == "spr-bdm-prediction":
        back = reached(agent, losses["backward_pred"])
        assert {name for name, hit in back.items() if hit} == {"encoder", "head", "predictor", "backward_dynamics"}
    if method in ("spr", "spr-bdm-prediction"):
        return
    assert "backward_pred" not in losses
    expected = {"encoder", "head", "predictor", "forward_dynamics", "backward_dynamics"}
    if method == "playvirtual-nd":
        expected -= {"forward_dynamics"}
    if method == "playvirtual-latent":
        expected -= {"head", "predictor"}
    cyc = reached(agent, losses["cyc"])
    assert {name for name, hit in cyc.items() if hit} == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("playvirtual", {"M": 0}), ("spr", {})),
        (("playvirtual", {"K": 0}), ("rl", {})),
        (("spr", {"K": 0}), ("rl", {})),
        (("playvirtual", {"real_cycle": True, "M": 0}), ("spr-bdm", {})),
        (("playvirtual", {"backward_prediction": True, "M": 0}), ("spr-bdm-prediction", {})),
        (("spr-bdm-prediction", {"K": 0}), ("rl", {})),
    ],
)
def test_limits_of_a_method_are_exactly_another_method(one: Any, other: Any) -> None:
    """Bit by bit: the same networks, losses and weights after three updates."""
    results = []
    for method, options in (one, other):
        agent = agent_of(method, **options)
        for number in range(3):
            agent.update(batch_of(agent.objective.K, seed=number), schedule_at(50))
        results.append(agent.online.state_dict())
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_losses_after_a_terminal_are_masked() -> None:
    agent = agent_of("playvirtual")
    batch = batch_of(agent.objective.K)
    draws = agent.draw(batch)
    whole = agent.losses(batch._replace(sequences=batch.sequences._replace(mask=torch.ones(5, 4))), draws)
    masked = agent.losses(batch._replace(sequences=batch.sequences._replace(mask=torch.zeros(5, 4))), draws)
    assert (whole["pred"] > 0).all()
    assert not masked["pred"].any()
    assert not masked["cyc"].any()
    torch.testing.assert_close(whole["rl"], masked["rl"])


def test_lambda_cyc_weighs_the_cycle_loss_alone() -> None:
    """The total is weight · (rl + pred + λ_cyc · cyc), averaged over the batch."""
    totals = []
    for step in (0, 100):
        agent = agent_of("playvirtual")
        batch = batch_of(agent.objective.K)
        metrics = agent.update(batch._replace(weights=torch.ones(5)), schedule_at(step)).metrics
        lambda_cyc = 1.0 if step else float(torch.tensor(-5.0).exp())
        expected = metrics["loss_rl"] + metrics["loss_pred"] + lambda_cyc * metrics["loss_cyc"]
        torch.testing.assert_close(metrics["loss"], expected)
        totals.append(float(metrics["loss"]))
    assert totals[1] > totals[0]


def test_the_target_equals_the_online_network_or_is_one_update_behind() -> None:
    """after-step: the target equals the online network; before-step: it is one update behind."""
    for moment in ("after-step", "before-step"):
        agent = agent_of("spr", target_moment=moment)
        before = agent.encoder.convs[0].weight.clone()
        agent.update(batch_of(agent.objective.K), schedule_at(0))
        target = agent.target_encoder.convs[0].weight
        assert torch.equal(target, agent.encoder.convs[0].weight if moment == "after-step" else before)


def test_the_target_is_copied_in_the_last_update_of_a_period() -> None:
    agent = agent_of("spr", target_period=2)
    start = agent.encoder.convs[0].weight.clone()
    for number in (0, 1):
        schedule = schedule_at(0)
        schedule.due = agent.update_pattern.due(number)
        agent.update(batch_of(agent.objective.K), schedule)
        copied = torch.equal(agent.target_encoder.convs[0].weight, agent.encoder.convs[0].weight)
        assert copied == (number == 1)
    assert not torch.equal(start, agent.target_encoder.convs[0].weight)


def test_a_long_target_period_has_two_kinds_of_updates() -> None:
    agent = agent_of("spr", target_period=2000)
    kinds = [agent.update_pattern.kind(update) for update in range(6000)]
    assert [update for update, kind in enumerate(kinds) if kind == 1999] == [1999, 3999, 5999]
    assert set(kinds) == {0, 1999}
    assert agent_of("spr", target_period=1).update_pattern.kind(7) == 0


def test_a_black_screen_gives_finite_numbers() -> None:
    """A constant feature map would be 0/0 in the released code."""
    agent = agent_of("playvirtual")
    batch = batch_of(agent.objective.K)
    black = batch._replace(
        sequences=batch.sequences._replace(observations=torch.zeros_like(batch.sequences.observations)),
        next_observations=torch.zeros_like(batch.next_observations),
    )
    for conv in agent.encoder.convs:
        torch.nn.init.zeros_(conv.bias)
    agent.update_target()
    metrics = agent.update(black, schedule_at(100)).metrics
    assert all(bool(value.isfinite().all()) for value in metrics.values())
    assert all(bool(p.isfinite().all()) for p in agent.online.parameters())


def test_acting_greedily_ignores_noise_and_exploring_does_not() -> None:
    agent = agent_of("rl")
    observations = torch.randint(256, (20, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    greedy = agent.act(observations)
    explored = []
    for seed in range(20):
        agent.head.resample(torch.Generator().manual_seed(seed))
        assert torch.equal(agent.act(observations), greedy)
        explored.append(torch.equal(agent.act(observations, explore=True), greedy))
    assert not all(explored)
    assert agent.act(observations[0].numpy()).shape == ()


def test_state_round_trip_continues_bit_exactly() -> None:
    first = agent_of("playvirtual")
    first.update(batch_of(3, seed=1), schedule_at(10))
    second = agent_of("playvirtual", seed=9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert first.generator is not None
    assert second.generator is not None
    second.generator.set_state(first.generator.get_state())
    for agent in (first, second):
        agent.update(batch_of(3, seed=2), schedule_at(20))
    assert all(torch.equal(a, b) for a, b in zip(first.online.parameters(), second.online.parameters(), strict=True))
