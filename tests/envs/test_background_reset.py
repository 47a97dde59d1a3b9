"""Episodes that were reset in the background are the ones that a plain reset gives."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv

from playvirtual.config.build import build
from playvirtual.envs.env import EnvironmentConfig, VectorStep
from playvirtual.envs.families.atari import Atari
from playvirtual.envs.vector import BackgroundReset
from playvirtual.training.trainer import Trainer
from tests.waiting import HANG, wait_until


def game(config: EnvironmentConfig) -> Atari:
    return Atari("breakout", 1, life_loss_is_terminal=True, config=config)


def test_prepared_or_not_a_seed_decides_the_game(settings):
    env, plain = BackgroundReset(lambda: game(settings())), game(settings())
    rng = np.random.default_rng(0)
    # Prepared, prepared for another seed, prepared twice, not prepared.
    for seed, prepared in ((1, [1]), (2, [7]), (3, [8, 3]), (4, []), (5, [5])):
        for before in prepared:
            env.prepare_reset(before)
        assert np.array_equal(env.reset([0], [seed]), plain.reset([0], [seed]))
        for _ in range(30):
            actions = rng.integers(4, size=1)
            for ours, theirs in zip(env.step(actions), plain.step(actions), strict=True):
                assert np.array_equal(ours, theirs)
        assert np.array_equal(env.render(0), plain.render(0))
    env.close()
    plain.close()


class Slow:
    """An environment whose reset waits for an event, and fails for negative seeds."""

    num_envs, frame_shape, action_space = 1, (1, 2, 2), None

    def __init__(self, go: threading.Event, closed: list[Slow]) -> None:
        self.go, self.closed = go, closed

    def reset(self, indices, seeds):
        assert self.go.wait(HANG)
        if seeds[0] < 0:
            raise ValueError("no such seed")
        return np.full((1, 1, 2, 2), seeds[0], np.uint8)

    def step(self, actions, indices=None) -> VectorStep:
        return VectorStep(
            np.zeros((1, 1, 2, 2), np.uint8), np.zeros(1, np.float32), np.zeros(1, bool), np.zeros(1, bool)
        )

    def close(self) -> None:
        self.closed.append(self)


@pytest.fixture
def slow():
    go, closed = threading.Event(), []
    env = BackgroundReset(lambda: Slow(go, closed))
    yield env, go, closed
    go.set()
    env.close()


def test_steps_do_not_wait_for_the_reset_in_the_background(slow):
    env, go, _ = slow
    env.prepare_reset(3)
    assert not env.step(np.zeros(1)).done[0]  # a step that waited would hang here
    go.set()
    assert env.reset([0], [3]).flat[0] == 3


def test_an_error_of_the_background_reset_is_raised_by_the_reset_that_asks_for_it(slow):
    env, go, _ = slow
    go.set()
    env.prepare_reset(-1)
    with pytest.raises(ValueError, match="no such seed"):
        env.reset([0], [-1])
    assert env.reset([0], [4]).flat[0] == 4


def test_closing_closes_both(slow):
    env, go, closed = slow
    go.set()
    env.prepare_reset(1)
    env.reset([0], [1])
    env.close()
    assert len(closed) == 2


def test_training_on_atari_loads_every_game_once_and_in_advance(monkeypatch):
    loaded = []  # the seed of each game, and whether the thread that plays loaded it
    load = AtariVectorEnv.reset

    def recorded(self, *, seed):
        loaded.append((int(seed[0]), threading.current_thread() is threading.main_thread()))
        return load(self, seed=seed)

    monkeypatch.setattr(AtariVectorEnv, "reset", recorded)
    with closing(Trainer(build("atari/pong", max_episode_frames=40, device="cpu"))) as trainer:
        while trainer.env.num_episodes < 4:
            trainer.train(1)
        wait_until(lambda: len(loaded) >= 5, "the load of the fifth game")
    assert len({seed for seed, _ in loaded}) == len(loaded) == 5  # four games and the one that follows them
    assert [here for _, here in loaded] == [True, False, False, False, False]
