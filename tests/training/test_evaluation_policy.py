"""How a run's policy is evaluated: greedily, with random actions at the rate ε, on the way that a run takes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.training.evaluation import WatchedStep
from playvirtual.training.trainer import Trainer

SMALL: dict[str, Any] = {"device": "cpu", "hidden": 8, "dynamics_hidden": 8}


def trainer_of(task: str = "toy/catch", **options: Any) -> closing[Trainer]:
    return closing(Trainer(pv.build(task, **{**SMALL, **options})))


def evaluated(trainer: Trainer) -> list[WatchedStep]:
    """Every step of an evaluation in one env."""
    steps: list[WatchedStep] = []
    returns = trainer.evaluate(trainer.evaluation_policy(), steps.append)
    assert len(returns) == trainer.config.evaluation.eval_episodes == sum(step.done for step in steps)
    return steps


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (0.3, 0.2), (1.0, 2 / 3)])  # a third of random ones agrees
def test_actions_are_random_at_the_rate_epsilon(epsilon: float, share: float) -> None:
    with trainer_of(eval_epsilon=epsilon, eval_episodes=50, eval_envs=1) as trainer:
        steps = evaluated(trainer)
        assert len(steps) == 50 * 9
        greedy = trainer.agent.act(np.stack([step.observation for step in steps])).numpy()
        actions = np.array([step.action for step in steps])
        assert float((actions != greedy).mean()) == pytest.approx(share, abs=0.08 if epsilon else 0.0)
        if epsilon == 1.0:
            assert all(abs(count - 150) < 40 for count in Counter(actions.tolist()).values())  # four deviations


def test_envs_draw_their_random_actions_independently() -> None:
    with trainer_of(eval_epsilon=0.5) as trainer:
        policy, observations = trainer.evaluation_policy(), np.zeros((900, 1, 10, 10), np.uint8)
        greedy = trainer.agent.act(observations[:1]).item()
        first, second = policy(observations), policy(observations)
        for actions in (first, second):
            counts = Counter(actions.tolist())
            assert counts[greedy] == pytest.approx(600, abs=60)  # half of them, and a third of the other half
            assert all(count == pytest.approx(150, abs=50) for action, count in counts.items() if action != greedy)
        assert float((first != second).mean()) == pytest.approx(0.5, abs=0.08)  # 1 − (4 + ¼ + ¼)/9


def test_seed_and_step_decide_the_random_actions() -> None:
    observations = np.zeros((50, 1, 10, 10), np.uint8)
    found = []
    for seed, step in ((1, 0), (1, 0), (1, 3), (2, 0)):
        with trainer_of(eval_epsilon=1.0, seed=seed) as trainer:
            trainer.step = step
            found.append(trainer.evaluation_policy()(observations).tolist())
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[0] != found[3]


def test_every_evaluation_of_a_run_has_episodes_of_its_own() -> None:
    """Standing still catches the balls that fall onto the paddle: seeds decide which."""
    found = []
    for step in (0, 0, 5):
        with trainer_of(eval_episodes=60) as trainer:
            trainer.step = step
            found.append(trainer.evaluate(lambda observations: np.ones(len(observations), np.int64)))
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert [len(returns) for returns in found] == [60] * 3


@pytest.mark.parametrize("epsilon", [0.0, 1.0])  # which is for discrete actions
def test_continuous_actions_are_the_mean_in_evaluation_and_drawn_in_training(epsilon: float) -> None:
    with trainer_of("toy/reach", eval_epsilon=epsilon, eval_episodes=2, eval_envs=1) as trainer:
        steps = evaluated(trainer)
        observations = np.stack([step.observation for step in steps])
        mean = trainer.agent.act(observations).numpy()
        np.testing.assert_allclose(np.stack([step.action for step in steps]), mean, atol=1e-6)
        explored = trainer.policy(observations)
        assert float(np.abs(explored - mean).max(1).min()) > 1e-4


def test_noisy_layers_are_still_in_evaluation_alone() -> None:
    with trainer_of("toy/catch", noisy_sigma=20.0, eval_epsilon=0.0) as trainer:
        observations = np.random.default_rng(0).integers(256, size=(300, 1, 10, 10)).astype(np.uint8)
        trainer.agent.head.resample(trainer.generator)  # type: ignore[attr-defined]
        still, explored = trainer.evaluation_policy()(observations), trainer.policy(observations)
        np.testing.assert_array_equal(still, trainer.agent.act(observations).numpy())
        assert (still != explored).any()


def test_an_evaluation_changes_nothing_that_training_uses() -> None:
    with trainer_of("toy/reach", eval_episodes=3, learning_starts=30, batch_size=4, steps=40) as trainer:
        trainer.train(5)
        before = trainer.state_dict()
        generator, random = before["generator"].clone(), repr(before["random"])
        observation, weights = trainer.env.observations.copy(), trainer.agent.parts["actor"].state_dict()
        kept = {name: value.clone() for name, value in weights.items()}
        assert len(trainer.evaluate(trainer.evaluation_policy())) == 3
        assert torch.equal(trainer.generator.get_state(), generator)
        assert repr(trainer.random.bit_generator.state) == random
        np.testing.assert_array_equal(trainer.env.observations, observation)
        assert all(torch.equal(value, kept[name]) for name, value in weights.items())
