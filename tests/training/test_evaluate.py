"""Evaluation plays every episode it begins, in any number of lanes, with the same result."""

import numpy as np
import numpy.typing as npt
import pytest

from playvirtual import envs
from playvirtual.presets import build
from playvirtual.training.evaluate import evaluation_seeds, play

CONFIG = build("toy/catch").environment


def chase(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Perfect play, read off the pixels: move the paddle towards the ball's column."""
    ball = observations[:, -1, :-1].max(1).argmax(1)
    paddle = observations[:, -1, -1].argmax(1)
    return np.sign(ball - paddle).astype(np.int64) + 1


def score(policy: object, lanes: int, seeds: list[int]) -> list[float]:
    env = envs.make("toy/catch", lanes, training=False, config=CONFIG)
    return play(policy, env, CONFIG, seeds)  # type: ignore[arg-type]


def test_perfect_play_scores_one() -> None:
    assert score(chase, 8, list(range(50))) == [1.0] * 50


@pytest.mark.parametrize("lanes", [1, 3, 20])
def test_the_number_of_lanes_changes_nothing(lanes: int) -> None:
    """Always standing still catches exactly the balls that fall onto the start column."""

    def still(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.ones(len(observations), np.int64)

    seeds = list(range(20))
    assert score(still, lanes, seeds) == score(still, 5, seeds)
    assert -1.0 in score(still, lanes, seeds)


def test_long_episodes_count_as_well_as_short_ones() -> None:
    """Atari games of different length: all finish, whatever the lanes."""
    config = build("atari/breakout", max_episode_frames=2_000).environment
    seeds = evaluation_seeds(seed=1, step=0, episodes=5)
    results = []
    for lanes in (2, 5):
        env = envs.make("atari/breakout", lanes, training=False, config=config)
        results.append(play(lambda o: (o[:, -1].sum((1, 2)) % 4).astype(np.int64), env, config, seeds))
        env.close()
    assert results[0] == results[1]
    assert len(results[0]) == 5


def test_seeds_are_distinct_and_reproducible() -> None:
    seeds = evaluation_seeds(3, 1000, 100)
    assert len(set(seeds)) == 100
    assert seeds == evaluation_seeds(3, 1000, 100)
    assert not set(seeds) & set(evaluation_seeds(4, 1000, 100))


def test_what_a_watcher_keeps_stays_as_it_was() -> None:
    config, moments = build("toy/reach").environment, []
    env = envs.make("toy/reach", 2, training=False, config=config)
    random = np.random.default_rng(0)
    play(lambda seen: random.uniform(-1, 1, (len(seen), 2)).astype(np.float32), env, config, [1, 2], moments.append)
    assert len(moments) > 2
    assert len({moment.action.tobytes() for moment in moments}) == len(moments)
    assert len({moment.observation.tobytes() for moment in moments}) > 1
