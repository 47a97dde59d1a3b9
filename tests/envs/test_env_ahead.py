"""Games that are got ready in advance are the games that would have been played anyway."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest

from playvirtual.config import EnvironmentConfig
from playvirtual.envs.ahead import Ahead
from playvirtual.envs.atari import Atari
from playvirtual.envs.protocol import Step
from playvirtual.presets import build
from playvirtual.training.loop import Training


def game(config: EnvironmentConfig) -> Atari:
    return Atari("breakout", 1, lost_life_is_terminal=True, config=config)


def test_prepared_or_not_a_seed_decides_the_game(settings):
    ahead, plain = Ahead(lambda: game(settings())), game(settings())
    rng = np.random.default_rng(0)
    # Prepared, prepared for another seed, prepared twice, not prepared.
    for seed, prepared in ((1, [1]), (2, [7]), (3, [8, 3]), (4, []), (5, [5])):
        for before in prepared:
            ahead.prepare(before)
        assert np.array_equal(ahead.reset([0], [seed]), plain.reset([0], [seed]))
        for _ in range(30):
            actions = rng.integers(4, size=1)
            for ours, theirs in zip(ahead.step(actions), plain.step(actions), strict=True):
                assert np.array_equal(ours, theirs)
        assert np.array_equal(ahead.picture(0), plain.picture(0))
    ahead.close()
    plain.close()


class Slow:
    """A lane whose reset waits until it is let go, and which may fail."""

    lanes, frame_shape, action_space = 1, (1, 2, 2), None

    def __init__(self, go: threading.Event, closed: list[Slow]) -> None:
        self.go, self.closed = go, closed

    def reset(self, lanes, seeds):
        assert self.go.wait(20)
        if seeds[0] < 0:
            raise ValueError("no such seed")
        return np.full((1, 1, 2, 2), seeds[0], np.uint8)

    def step(self, actions) -> Step:
        return Step(np.zeros((1, 1, 2, 2), np.uint8), np.zeros(1, np.float32), np.zeros(1, bool), np.zeros(1, bool))

    def close(self) -> None:
        self.closed.append(self)


@pytest.fixture
def slow():
    go, closed = threading.Event(), []
    ahead = Ahead(lambda: Slow(go, closed))
    yield ahead, go, closed
    go.set()
    ahead.close()


def test_play_goes_on_while_the_next_game_is_got_ready(slow):
    ahead, go, _ = slow
    ahead.prepare(3)
    ahead.step(np.zeros(1))  # would hang if it waited
    go.set()
    assert ahead.reset([0], [3]).flat[0] == 3


def test_what_goes_wrong_in_advance_is_said_when_the_game_is_asked_for(slow):
    ahead, go, _ = slow
    go.set()
    ahead.prepare(-1)
    with pytest.raises(ValueError, match="no such seed"):
        ahead.reset([0], [-1])
    assert ahead.reset([0], [4]).flat[0] == 4


def test_closing_closes_both(slow):
    ahead, go, closed = slow
    go.set()
    ahead.prepare(1)
    ahead.reset([0], [1])
    ahead.close()
    assert len(closed) == 2


def test_training_on_atari_loads_every_game_once_and_in_advance(monkeypatch):
    loaded = []
    load = Atari._load

    def counted(self: Atari, lane: int, seed: int) -> None:
        loaded.append(seed)
        load(self, lane, seed)

    monkeypatch.setattr(Atari, "_load", counted)
    with closing(Training(build("atari/pong", max_episode_frames=40, device="cpu"))) as training:
        while training.episode < 4:
            training.interact()
        expected = [training._seed(episode) for episode in range(5)]
        training.env._take()  # waits for the fifth
    assert loaded == expected
