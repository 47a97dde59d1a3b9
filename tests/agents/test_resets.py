"""Resets: when they come, what they make anew, what they keep; and agents that act by their target network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import playvirtual as pv
from playvirtual.agents.agent import policy_state_dict
from playvirtual.agents.bbf import Bbf
from playvirtual.agents.resets import RainbowWithResets, ResetMoments, SrSpr, clear_moments, move_towards, new_agent
from playvirtual.envs.env import EnvironmentConfig
from tests.agents.baseline_agents import IMAGE, rainbow_agent, rainbow_batch, schedule_at

MAP: dict[str, Any] = {"latent": 0, "K": 2}  # dynamics models of feature maps


def moments(method: str, task: str = "atari/pong", **options: Any) -> list[int]:
    """The numbers of the updates that a reset precedes."""
    config = pv.build(task, method=method, device="cpu", **options)
    return moments_of(config, int(config.agent_steps * config.agent.updates_per_step))


def moments_of(config: Any, updates: int) -> list[int]:
    due = [ResetMoments(config).due(update) for update in range(updates)]
    assert due[:1] == [0]
    return [update for update in range(1, updates) if due[update] > due[update - 1]]


def test_four_resets_of_last_layers_in_100000_steps_of_two_updates() -> None:
    """After the steps 20,000 to 80,000; the first update is made in step 2,000, so 2 · 18,001 by step 20,000."""
    assert moments("spr-resets") == [36_002 + n * 40_000 for n in range(4)]


def test_three_resets_of_bbf() -> None:
    """As often as its code resets, after the steps 20,002, 40,003 and 60,004; here 20,001, 40,002 and 60,003."""
    assert moments("bbf") == [2 * 18_002 + n * 2 * 20_001 for n in range(3)]


def test_eighteen_resets_with_eight_updates_per_step() -> None:
    """As often as SR-SPR's code resets, the last time after step 90,019; here after 90,018 = 18 · 5,001."""
    assert moments("sr-spr") == [8 * 3_002 + n * 8 * 5_001 for n in range(18)]


def test_nothing_is_reset_without_a_whole_interval_left() -> None:
    every = {"reset_every": 20_000}
    assert moments("bbf", steps=99_999, **every) == [36_002, 76_002, 116_002]
    assert moments("bbf", steps=40_000, **every) == [36_002]
    assert moments("bbf", steps=39_999, **every) == []
    assert moments("bbf", reset_every=0) == []


def test_nothing_is_reset_before_the_first_update() -> None:
    """Learning starts in step 2,000, whose two updates the reset after it follows."""
    assert moments("bbf", reset_every=1_000, steps=4_000) == [2, 2_002]


def test_with_an_update_every_fourth_step() -> None:
    """By step 10,000 there have been a quarter of 9,001 updates."""
    assert moments("spr-resets", "minatar/breakout") == [2_250, 4_750, 7_250, 9_750]


def test_intervals_are_in_the_steps_of_the_run() -> None:
    """With steps of environment frames and four of them an action, 20,000 are 5,000 actions."""
    config = pv.build("atari/pong", method="bbf", device="cpu", steps=60_000, reset_every=20_000)
    frames = replace(config, step_unit="environment")
    assert frames.environment == replace(EnvironmentConfig(**vars(frames.environment)), action_repeat=4)
    assert moments_of(frames, 30_000) == [2 * 3_001, 2 * 8_001]


def test_updates_since_the_last_reset() -> None:
    """Two per step: 0 in the steps after a reset and in the first one with updates, which is the 2,000th."""
    found = ResetMoments(pv.build("atari/pong", method="bbf", device="cpu", reset_every=20_000))
    steps = {1: 0, 2_000: 0, 2_001: 2, 7_000: 10_000, 20_000: 36_000, 20_001: 0, 20_002: 2, 99_999: 2 * 19_998}
    assert {step: found.updates_since(step) for step in steps} == steps


def test_weights_move_towards_those_of_another_network() -> None:
    own, other = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        own.weight.fill_(2.0)
        other.weight.fill_(-3.0)
        own.bias.fill_(1.0)
        other.bias.fill_(0.0)
    address = own.weight.data_ptr()
    move_towards(own, other, 0.8)
    assert (own.weight.item(), own.bias.item()) == pytest.approx((1.0, 0.8))  # 0.8 · 2 − 0.2 · 3
    move_towards(own, other, 1.0)
    assert own.weight.item() == pytest.approx(1.0)
    move_towards(own, other, 0.0)
    assert (own.weight.item(), own.bias.item()) == (-3.0, 0.0)
    assert own.weight.data_ptr() == address  # a captured update knows weights by their address


def test_an_optimizer_forgets_in_place() -> None:
    layer = nn.Linear(2, 1)
    adam = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.ones(1, 2)).sum().backward()
    adam.step()
    tensors = [tensor for state in adam.state.values() for tensor in state.values()]
    assert len(tensors) == 6
    assert all(tensor.any() for tensor in tensors)
    clear_moments([adam])
    assert not any(tensor.any() for tensor in tensors)


def updated(method: str, kind: type[Any], **options: Any) -> Any:
    """An agent after one update, so that its optimizer has a state."""
    agent = rainbow_agent(method, kind, **options)
    agent.update(rainbow_batch(agent), schedule_at(agent, 10_000, 0))
    return agent


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.named_parameters()}


def test_spr_with_resets_makes_its_last_layers_anew_and_nothing_else() -> None:
    agent = updated("spr-resets", RainbowWithResets, noisy_sigma=0.3)
    before = weights(agent.online)
    agent.reset(0)
    after = weights(agent.online)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    layers = {"weight_mu", "bias_mu", "weight_sigma", "bias_sigma"}
    assert changed - {"head.atom_bias"} == {f"head.{side}.out.{x}" for side in ("value", "advantage") for x in layers}
    hidden = agent.config.hidden
    assert after["head.value.out.weight_mu"].abs().max() <= hidden**-0.5
    assert after["head.value.out.weight_sigma"].flatten().tolist() == pytest.approx([0.3 * hidden**-0.5] * 7 * hidden)
    assert not after["head.atom_bias"].any()
    assert not any(tensor.any() for state in agent.optimizer.state.values() for tensor in state.values())


@pytest.mark.parametrize(("method", "kind"), [("sr-spr", SrSpr), ("bbf", Bbf)])
@pytest.mark.parametrize("form", [{}, MAP], ids=["vector", "map"])
def test_a_reset_shrinks_what_sees_and_predicts_and_makes_what_values_anew(
    method: str, kind: type[Any], form: dict[str, Any]
) -> None:
    agent = updated(f"{method}-virtual", kind, reset_keeps=0.75, M=1, **form)
    assert set(agent.online) == {"encoder", "head", "predictor", "forward_dynamics", "backward_dynamics"}
    before = {name: weights(part) for name, part in agent.parts.items()}
    state = agent.generator.get_state()
    online, target = new_agent(agent, agent._run_config), new_agent(agent, agent._run_config)
    agent.generator.set_state(state)
    agent.reset(0)
    for name, part in agent.parts.items():
        new = weights((target if "target" in name else online).parts[name.removeprefix("target_")])
        keeps = 0.0 if name in ("head", "target_head", "predictor") else 0.75
        for key, value in weights(part).items():
            expected = keeps * before[name][key] + (1 - keeps) * new[key]
            torch.testing.assert_close(value, expected, msg=f"{name}.{key}")
    assert not torch.equal(agent.head.hidden.weight, agent.target_head.hidden.weight)
    assert not any(tensor.any() for moments in agent.optimizer.state.values() for tensor in moments.values())


def test_an_extended_run_makes_one_reset_for_those_it_left_out() -> None:
    """Of 89 steps with a reset every 30 the second is left out, as 29 are left: it comes when more are to come."""
    short, long = (
        rainbow_agent("sr-spr", SrSpr, reset_every=30, steps=steps, learning_starts=20) for steps in (89, 150)
    )
    first, second, third = (short.config.updates_per_step * (30 * n - 19) for n in (1, 2, 3))
    assert [short.resets_before(update) for update in (first - 1, first, second)] == [False, True, True]
    short.reset(first)
    assert not short.resets_before(second)
    resumed = rainbow_agent("sr-spr", SrSpr, reset_every=30, steps=89, learning_starts=20)
    resumed.load_state_dict(short.state_dict())
    assert not resumed.resets_before(second)
    assert not long.resets_before(first - 1)
    long.load_state_dict(short.state_dict())
    assert long.resets_before(third - 2)
    long.reset(third - 2)
    assert [long.resets_before(update) for update in (third - 1, third)] == [False, True]


def test_without_the_objective_states_are_rescaled_all_the_same() -> None:
    """SR_SPR.gin and BBF.gin, renormalize: whatever the weight of SPR's loss."""
    assert rainbow_agent("sr-spr", SrSpr, K=0).encoder.rescaled
    assert rainbow_agent("bbf", Bbf, K=0).encoder.rescaled


def test_a_pretrained_encoder_is_not_reset() -> None:
    agent = rainbow_agent("sr-spr", SrSpr)
    agent._run_config = replace(agent._run_config, encoder_from="elsewhere")
    before = weights(agent.encoder), weights(agent.target_encoder)
    agent.reset(0)
    for old, part in zip(before, (agent.encoder, agent.target_encoder), strict=True):
        assert all(torch.equal(old[name], value) for name, value in part.named_parameters())


def test_new_agents_depend_on_the_generator_alone() -> None:
    agent = rainbow_agent("sr-spr", SrSpr)
    state, outside = agent.generator.get_state(), torch.random.get_rng_state()
    one, two = (weights(new_agent(agent, agent._run_config).head) for _ in range(2))
    agent.generator.set_state(state)
    torch.manual_seed(77)
    again = weights(new_agent(agent, agent._run_config).head)
    torch.random.set_rng_state(outside)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["hidden.weight"], two["hidden.weight"])


@pytest.mark.parametrize(("method", "kind"), [("sr-spr", SrSpr), ("bbf", Bbf)])
def test_the_target_network_acts_and_is_exported(method: str, kind: type[Any]) -> None:
    agent = rainbow_agent(method, kind)
    observations = torch.randint(256, (64, *IMAGE), dtype=torch.uint8)
    values = agent.action_values(observations)
    with torch.no_grad():
        for part in (agent.encoder, agent.head):
            for p in part.parameters():
                p.add_(torch.randn_like(p))
    assert torch.equal(agent.action_values(observations), values)
    with torch.no_grad():
        agent.target_head.hidden.weight.add_(torch.randn_like(agent.target_head.hidden.weight))
    assert not torch.allclose(agent.action_values(observations), values)
    assert {name.partition(".")[0] for name in policy_state_dict(agent)} == {"target_encoder", "target_head"}


def test_the_target_network_follows_slowly() -> None:
    agent = rainbow_agent("sr-spr", SrSpr, target_tau=0.25)
    before = weights(agent.target_head)
    agent.update(rainbow_batch(agent), schedule_at(agent, 10_000, 0))
    for name, value in agent.target_head.named_parameters():
        expected = 0.75 * before[name] + 0.25 * dict(agent.head.named_parameters())[name]
        torch.testing.assert_close(value, expected)


def test_networks_start_as_their_targets_and_all_layers_alike() -> None:
    """By Glorot and Bengio's rule: uniform up to √(6 / (inputs + outputs)), biases 0."""
    config = pv.build("toy/catch", method="sr-spr", device="cpu")
    agent = SrSpr(config, (1, 10, 10), rainbow_agent("sr-spr").action_space)
    for name in ("encoder", "head"):
        online, target = weights(agent.parts[name]), weights(agent.parts[f"target_{name}"])
        assert all(torch.equal(online[key], target[key]) for key in online)
    predictor = agent.parts["predictor"]
    bound = (6 / (2 * config.agent.hidden)) ** 0.5
    assert 0.95 * bound < predictor.weight.abs().max() <= bound
    assert not predictor.bias.any()
