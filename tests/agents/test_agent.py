"""What every agent has in common: the update pattern, schedules, policy weights, counts of parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import playvirtual as pv
from playvirtual.agents.agent import (
    Agent,
    EncodesObservations,
    Every,
    Schedule,
    UpdatePattern,
    ValuesActions,
    as_images,
    load_policy_state_dict,
    make_agent,
    num_trainable_parameters,
    policy_state_dict,
)
from playvirtual.errors import InputError

TASKS: dict[str, tuple[tuple[int, int, int], Any]] = {
    "toy/catch": ((1, 10, 10), spaces.Discrete(3)),
    "toy/reach": ((3, 12, 12), spaces.Box(-1.0, 1.0, (2,), np.float32)),
}
EACH_TASK = pytest.mark.parametrize("task", TASKS)


def agent_of(task: str, seed: int = 0, **options: Any) -> Agent:
    shape, space = TASKS[task]
    config = pv.build(task, device="cpu", hidden=16, dynamics_hidden=8, **options)
    return make_agent(config, shape, space, torch.device("cpu"), seed)


parts = st.dictionaries(
    st.sampled_from(["actor", "target", "momentum"]),
    st.integers(1, 6).flatmap(lambda period: st.builds(Every, st.just(period), st.integers(0, period - 1))),
)


@given(parts, st.integers(0, 500))
def test_an_update_pattern_repeats_after_its_period(parts: dict[str, Every], update: int) -> None:
    pattern = UpdatePattern(**parts)
    assert pattern.due(update) == pattern.due(update + pattern.period)
    assert all(pattern.period % part.period == 0 for part in parts.values())
    assert pattern.period == math.lcm(1, *(part.period for part in parts.values()))


def test_a_pattern_repeats_earlier_without_the_parts_that_are_rarely_due() -> None:
    pattern = UpdatePattern(actor=Every(2), momentum=Every(3), target=Every(2_000, offset=1_999))
    assert [pattern.period_within(most) for most in (1, 2, 3, 1_999, 2_000)] == [1, 2, 6, 6, pattern.period]
    assert {pattern.due(n) for n in range(6)} == {pattern.due(n) - {"target"} for n in range(pattern.period)}


@given(parts, st.integers(0, 500))
def test_a_part_is_due_once_in_each_of_its_periods(parts: dict[str, Every], start: int) -> None:
    pattern = UpdatePattern(**parts)
    for name, part in parts.items():
        due = [update for update in range(start, start + part.period) if name in pattern.due(update)]
        assert len(due) == 1
        assert due[0] % part.period == part.offset


@given(parts, st.integers(0, 500))
def test_the_kind_of_an_update_is_the_first_one_that_does_the_same_work(parts: dict[str, Every], update: int) -> None:
    pattern = UpdatePattern(**parts)
    kind = pattern.kind(update)
    assert kind <= update
    assert kind < pattern.period
    assert pattern.due(kind) == pattern.due(update)
    assert all(pattern.due(earlier) != pattern.due(update) for earlier in range(kind))
    assert pattern.kind(kind) == kind


def test_a_pattern_without_parts_has_one_kind_of_update() -> None:
    pattern = UpdatePattern()
    assert pattern.period == 1
    assert {pattern.kind(update) for update in range(5)} == {0}
    assert pattern.due(3) == frozenset()


def test_a_schedule_is_written_in_place() -> None:
    """A captured update reads the same memory at every step."""
    schedule = Schedule({"beta": lambda step: step / 10, "lambda_cyc": lambda step: 2.0 * step})
    places = {name: value.data_ptr() for name, value in schedule.items()}
    assert {name: float(value) for name, value in schedule.items()} == {"beta": 0.0, "lambda_cyc": 0.0}
    schedule.set(5)
    assert {name: float(value) for name, value in schedule.items()} == {"beta": 0.5, "lambda_cyc": 10.0}
    assert {name: value.data_ptr() for name, value in schedule.items()} == places
    assert list(schedule) == ["beta", "lambda_cyc"]
    assert len(schedule) == 2


@EACH_TASK
def test_policy_weights_make_another_agent_act_alike(task: str) -> None:
    agent, other = agent_of(task, seed=1), agent_of(task, seed=2)
    observations = torch.randint(256, (20, *TASKS[task][0]), dtype=torch.uint8)
    weights = policy_state_dict(agent)
    assert {name.partition(".")[0] for name in weights} == set(agent.policy_parts)
    load_policy_state_dict(other, {name: value.clone() for name, value in weights.items()})
    assert torch.equal(agent.act(observations), other.act(observations))
    assert all(torch.equal(value, weights[name]) for name, value in policy_state_dict(other).items())


@EACH_TASK
def test_policy_weights_that_do_not_fit_are_an_error(task: str) -> None:
    agent = agent_of(task)
    weights = policy_state_dict(agent)
    weights.pop(next(iter(weights)))
    with pytest.raises(RuntimeError, match="Missing key"):
        load_policy_state_dict(agent, weights)


@EACH_TASK
def test_the_whole_state_makes_another_agent_the_same(task: str) -> None:
    agent, other = agent_of(task, seed=1), agent_of(task, seed=2)
    other.load_state_dict(agent.state_dict())
    for name, part in agent.parts.items():
        theirs = other.parts[name].state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in part.state_dict().items()), name


@EACH_TASK
def test_the_seed_decides_the_weights_and_leaves_the_global_random_state_alone(task: str) -> None:
    state = torch.get_rng_state()
    one, same, other = agent_of(task, seed=1), agent_of(task, seed=1), agent_of(task, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (nn.utils.parameters_to_vector(a.parts["encoder"].parameters()) for a in (one, same, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


class Shares:
    """As much of an agent as is counted: two parts that share a layer, and a target network."""

    def __init__(self) -> None:
        shared = nn.Linear(3, 4)
        target = nn.Linear(3, 4).requires_grad_(False)
        self.parts = {"encoder": shared, "critic": nn.Sequential(shared, nn.Linear(4, 1)), "target": target}


def test_trainable_parameters_are_counted_once() -> None:
    agent: Any = Shares()
    assert num_trainable_parameters(agent) == (3 * 4 + 4) + (4 * 1 + 1)


@EACH_TASK
def test_an_agent_without_prediction_has_fewer_parameters(task: str) -> None:
    rl, spr, playvirtual = (num_trainable_parameters(agent_of(task, method=m)) for m in ("rl", "spr", "playvirtual"))
    assert rl < spr < playvirtual


def test_optional_capabilities_are_found_by_their_methods() -> None:
    rainbow, sac = agent_of("toy/catch"), agent_of("toy/reach")
    assert isinstance(rainbow, EncodesObservations)
    assert isinstance(rainbow, ValuesActions)
    assert isinstance(sac, EncodesObservations)
    assert not isinstance(sac, ValuesActions)


@EACH_TASK
def test_one_observation_or_many_are_acted_on(task: str) -> None:
    agent = agent_of(task)
    shape = TASKS[task][0]
    action = () if task == "toy/catch" else (2,)
    one, many = np.zeros(shape, np.uint8), torch.zeros(4, *shape, dtype=torch.uint8)
    assert agent.act(one).shape == action
    assert agent.act(many).shape == (4, *action)
    assert agent.act(many, explore=True).shape == (4, *action)


@pytest.mark.parametrize(
    "observation", [np.zeros((1, 10, 10)), np.zeros((10, 10, 1), np.uint8), "no image", None, [[1, 2], [3]]]
)
def test_what_is_no_observation_is_refused_in_one_line(observation: Any) -> None:
    with pytest.raises(InputError, match=r"observation: .*; allowed: uint8 of shape \(1, 10, 10\), or many of them"):
        as_images(observation, (1, 10, 10), torch.device("cpu"))
