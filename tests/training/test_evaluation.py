"""Evaluation plays every episode that it starts, in any number of envs, with the same result."""

import numpy as np
import numpy.typing as npt
import pytest

from playvirtual import envs
from playvirtual.config.build import build
from playvirtual.training.evaluation import evaluation_seeds, play_episodes

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


def test_only_games_that_are_still_played_are_looked_at_and_moved() -> None:
    """Balls of toy/catch fall for equally long, so one env plays two episodes after the others have had their last."""
    env = envs.make("toy/catch", 3, training=False, config=CONFIG)
    looked, moved = [], []

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        looked.append(len(observations))
        return chase(observations)

    def spy(actions: npt.NDArray[np.generic], indices: object = None) -> object:
        moved.append(indices)
        return step(actions, indices)  # type: ignore[arg-type]

    step, env.step = env.step, spy  # type: ignore[method-assign, assignment]
    assert play_episodes(policy, env, CONFIG, list(range(7))) == [1.0] * 7
    length = len(looked) // 3
    assert looked == [3] * length + [3] * length + [1] * length
    assert moved[0] == [0, 1, 2]
    assert moved[-1] == [0]


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
