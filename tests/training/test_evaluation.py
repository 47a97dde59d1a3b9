"""Evaluation plays every episode that it starts, in any number of envs, with the same result."""

from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from playvirtual import envs
from playvirtual.config.build import build
from playvirtual.method import BoxActions, DiscreteActions
from playvirtual.training.evaluation import evaluate, evaluation_policy, evaluation_seeds, play_episodes
from tests.training.scripted_env import DISCRETE, Episode, frame_of, scripted_tasks

CONFIG = build("toy/catch").environment


def chase(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Perfect play, read off the pixels: move the paddle towards the ball's column."""
    ball = observations[:, -1, :-1].max(1).argmax(1)
    paddle = observations[:, -1, -1].argmax(1)
    return np.sign(ball - paddle).astype(np.int64) + 1


def score(policy: object, num_envs: int, seeds: list[int]) -> list[float]:
    env = envs.make("toy/catch", num_envs, training=False, config=CONFIG)
    return play_episodes(policy, env, CONFIG, seeds)  # type: ignore[arg-type]


def test_perfect_play_scores_one() -> None:
    assert score(chase, 8, list(range(50))) == [1.0] * 50


@pytest.mark.parametrize("num_envs", [1, 3, 20])
def test_the_number_of_envs_changes_nothing(num_envs: int) -> None:
    """Always standing still catches exactly the balls that fall onto the start column."""

    def still(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.ones(len(observations), np.int64)

    seeds = list(range(20))
    assert score(still, num_envs, seeds) == score(still, 5, seeds)
    assert -1.0 in score(still, num_envs, seeds)


@pytest.mark.slow
def test_long_episodes_count_as_well_as_short_ones() -> None:
    """Atari games of different length: all finish, whatever the number of envs."""
    config = build("atari/breakout", max_episode_frames=2_000).environment
    seeds = evaluation_seeds(seed=1, step=0, episodes=5)
    results = []
    for num_envs in (2, 5):
        env = envs.make("atari/breakout", num_envs, training=False, config=config)
        results.append(play_episodes(lambda o: (o[:, -1].sum((1, 2)) % 4).astype(np.int64), env, config, seeds))
        env.close()
    assert results[0] == results[1]
    assert len(results[0]) == 5


def test_seeds_are_distinct_and_reproducible() -> None:
    seeds = evaluation_seeds(3, 1000, 100)
    assert len(set(seeds)) == 100
    assert seeds == evaluation_seeds(3, 1000, 100)
    assert not set(seeds) & set(evaluation_seeds(4, 1000, 100))


def test_watched_steps_own_their_arrays() -> None:
    config, steps = build("toy/reach").environment, []
    env = envs.make("toy/reach", 2, training=False, config=config)
    random = np.random.default_rng(0)

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return random.uniform(-1, 1, (len(observations), 2)).astype(np.float32)

    play_episodes(policy, env, config, [1, 2], steps.append)
    assert len(steps) > 2
    assert len({step.action.tobytes() for step in steps}) == len(steps)
    assert len({step.observation.tobytes() for step in steps}) > 1


class Still:
    """Stands in for a policy whose action is always 1."""

    def __init__(self, space: object) -> None:
        self.agent = SimpleNamespace(action_space=space)

    def __call__(self, observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.ones(len(observations), np.int64)


@pytest.mark.parametrize(("epsilon", "shares"), [(0.0, [0, 1, 0, 0]), (0.4, [0.1, 0.7, 0.1, 0.1]), (1.0, [0.25] * 4)])
def test_the_chance_of_a_random_action_in_evaluation(epsilon: float, shares: list[float]) -> None:
    """ε is the chance that a uniform action replaces the policy's, which may be the same again."""
    config = build("toy/catch", eval_epsilon=epsilon)
    seen = np.zeros((20_000, 1, 1, 1), np.uint8)
    policy = Still(DiscreteActions(4))
    acts = [evaluation_policy(policy, config, step)(seen) for step in (100, 100, 200)]  # type: ignore[arg-type]
    for actions in acts:
        np.testing.assert_allclose(np.bincount(actions, minlength=4) / len(seen), shares, atol=0.015)
    assert np.array_equal(acts[0], acts[1])
    assert np.array_equal(acts[0], acts[2]) == (epsilon == 0)


def test_continuous_actions_are_evaluated_as_they_are() -> None:
    config = build("toy/reach", eval_epsilon=1.0)
    policy = evaluation_policy(Still(BoxActions((-1.0,), (1.0,))), config, 0)  # type: ignore[arg-type]
    assert policy(np.zeros((50, 1, 1, 1), np.uint8)).tolist() == [1] * 50


@pytest.mark.parametrize("fill", ["zeros", "repeat"])
def test_what_an_evaluated_policy_sees(fill: str) -> None:
    """Stacks that begin anew with every episode, however many envs still play; lost lives change nothing."""
    with scripted_tasks() as made:
        options = {"frame_stack": 3, "stack_fill": fill, "eval_envs": 2, "action_repeat": 1}
        config = build("scripted/discrete", **{**DISCRETE, **options})
        seen: list[npt.NDArray[np.uint8]] = []

        def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
            seen.extend(observations.copy())
            return np.zeros(len(observations), np.int64)

        returns = evaluate(policy, config, episodes=5, seed=3)
    assert (made[0].num_envs, made[0].training) == (2, False)
    seeds = [moment.seed for moment in made[0].moments if moment.action is None]
    assert seeds == evaluation_seeds(3, 0, 5)
    assert returns == [sum(Episode.of(seed).rewards) for seed in seeds]
    expected = []
    for seed in seeds:
        frames = [frame_of(seed, time) for time in range(len(Episode.of(seed).rewards))]
        before = [frames[0] if fill == "repeat" else np.zeros_like(frames[0])] * 2
        expected += [np.concatenate([*before, *frames][time : time + 3]) for time in range(len(frames))]
    assert sorted(each.tobytes() for each in seen) == sorted(each.tobytes() for each in expected)
