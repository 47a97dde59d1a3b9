"""Choosing actions in training is the agent's own acting, and what a captured copy would read stays in place."""

from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.training.acting import Acting
from playvirtual.training.loop import Training
from tests.training.small import CONTINUOUS, TASKS


def played(task: str, options: dict[str, Any], steps: int) -> Training:
    training = Training(pv.build(task, **options))
    while training.step < steps:
        training.interact()
        training.learn()
    return training


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("explore", [False, True])
def test_the_agents_own_actions_with_the_same_draws(task: str, options: dict[str, Any], explore: bool) -> None:
    training = played(task, options, 45)
    agent, generator = training.agent, training.generator
    acting = Acting(agent, explore=explore, capture=True)
    for lanes in (1, 5, 3):
        pictures = np.random.default_rng(lanes).integers(256, size=(lanes, *training.observation_shape))
        observations = pictures.astype(np.uint8)
        before = generator.get_state()
        expected = agent.act(observations, explore=explore).numpy()
        after = generator.get_state()
        generator.set_state(before)
        np.testing.assert_array_equal(acting(observations), expected)
        assert torch.equal(generator.get_state(), after)
        assert torch.equal(before, after) == (task == "toy/catch" or not explore)


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_updates_and_loading_leave_weights_and_noise_where_they_lie(task: str, options: dict[str, Any]) -> None:
    """A captured graph reads addresses: other numbers may stand there, but the places must stay."""
    training = played(task, options, 39)
    agent = training.agent

    def places() -> dict[str, tuple[int, tuple[int, ...]]]:
        return {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in agent.weights().items()}

    before, values = places(), {name: tensor.clone() for name, tensor in agent.weights().items()}
    for _ in range(5):
        training.interact()
        training.learn()
    assert training.learner.updates > 0
    assert places() == before
    changed = {name for name, tensor in agent.weights().items() if not torch.equal(tensor, values[name])}
    assert changed
    agent.load_state_dict(Training(pv.build(task, **options, seed=9)).agent.state_dict())
    assert places() == before


def test_a_chosen_action_is_not_overwritten_by_the_next() -> None:
    training = played("toy/reach", CONTINUOUS, 45)
    first = training.explore(training.stack.observations)
    kept = first.copy()
    training.explore(training.stack.observations)
    np.testing.assert_array_equal(first, kept)
