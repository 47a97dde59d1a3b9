"""The policy acts as the agent does, and the tensors that a captured graph would read stay in place."""

from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.agents.agent import policy_state_dict
from playvirtual.training.policy import AsyncPolicy, checked_actions, graph_size
from playvirtual.training.trainer import Trainer
from tests.training.small import CONTINUOUS, TASKS


def played(task: str, options: dict[str, Any], steps: int) -> Trainer:
    trainer = Trainer(pv.build(task, **options))
    trainer.train(steps)
    return trainer


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("explore", [False, True])
def test_the_agents_own_actions_with_the_same_draws(task: str, options: dict[str, Any], explore: bool) -> None:
    trainer = played(task, options, 45)
    agent, generator = trainer.agent, trainer.generator
    policy = AsyncPolicy(agent, explore=explore, cudagraph=True)
    for num_envs in (1, 5, 3):
        frames = np.random.default_rng(num_envs).integers(256, size=(num_envs, *trainer.env.observation_shape))
        observations = frames.astype(np.uint8)
        before = generator.get_state()
        expected = agent.act(observations, explore=explore).numpy()
        after = generator.get_state()
        generator.set_state(before)
        np.testing.assert_array_equal(policy(observations), expected)
        assert torch.equal(generator.get_state(), after)
        assert torch.equal(before, after) == (task == "toy/catch" or not explore)


def test_graphs_of_few_sizes_have_room_for_every_number_of_observations() -> None:
    assert [graph_size(count, 100) for count in (1, 2, 4, 5, 16, 17, 64, 65, 100)] == [
        1,
        4,
        4,
        16,
        16,
        64,
        64,
        100,
        100,
    ]
    assert [graph_size(count, 3) for count in (1, 2, 3)] == [1, 3, 3]


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_updates_and_loading_write_weights_in_place(task: str, options: dict[str, Any]) -> None:
    """A captured graph reads addresses: the values there may change, the addresses may not."""
    trainer = played(task, options, 39)
    agent = trainer.agent

    def addresses() -> dict[str, tuple[int, tuple[int, ...]]]:
        return {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in policy_state_dict(agent).items()}

    before, values = addresses(), {name: tensor.clone() for name, tensor in policy_state_dict(agent).items()}
    trainer.train(5)
    assert trainer.learner.updates > 0
    assert addresses() == before
    changed = {name for name, tensor in policy_state_dict(agent).items() if not torch.equal(tensor, values[name])}
    assert changed
    agent.load_state_dict(Trainer(pv.build(task, **options, seed=9)).agent.state_dict())
    assert addresses() == before


def test_a_chosen_action_is_not_overwritten_by_the_next() -> None:
    trainer = played("toy/reach", CONTINUOUS, 45)
    first = trainer.policy(trainer.env.observations)
    kept = first.copy()
    trainer.policy(trainer.env.observations)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_actions_are_float32_whatever_the_agent_computes_in(kind: torch.dtype) -> None:
    agent = played("toy/reach", CONTINUOUS, 0).agent
    actions = torch.tensor([[0.5, -1.0]], dtype=kind, requires_grad=True)  # as of an agent that forgot no_grad
    chosen = checked_actions(actions, agent, 1)
    assert (chosen.dtype, chosen.tolist()) == (np.float32, [[0.5, -1.0]])
