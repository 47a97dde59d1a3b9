"""MinAtar against its own package."""

from __future__ import annotations

import re
import signal
import sys

import minatar
import numpy as np
import pytest

import playvirtual as pv
from playvirtual.envs import make
from playvirtual.envs.families.minatar import FAMILY, GAMES, MinAtar
from playvirtual.errors import InputError


@pytest.mark.parametrize("game", GAMES)
def test_the_same_game_as_the_package_plays(settings, game):
    ours = make(f"minatar/{game}", 1, training=True, config=settings(action_repeat=1))
    theirs = minatar.Environment(game)
    theirs.seed(5)
    theirs.reset()
    frame = ours.reset([0], [5])[0]
    moves = theirs.minimal_action_set()
    assert ours.action_space.n == len(moves)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert set(np.unique(frame)) <= {0, 255}
        assert np.array_equal(frame.transpose(1, 2, 0) == 255, theirs.state())
        action = int(rng.integers(len(moves)))
        step = ours.step(np.array([action]))
        reward, ended = theirs.act(moves[action])
        assert step.rewards[0] == reward
        assert step.terminated[0] == step.done[0] == ended
        frame = step.frames[0]
        if ended:
            break


@pytest.mark.parametrize("sticky", [0.0, 1.0])
def test_sticky_actions_are_an_argument(settings, sticky):
    config = settings(action_repeat=1, env_args=(f"sticky_action_prob={sticky}",))
    ours = make("minatar/breakout", 1, training=True, config=config)
    ours.reset([0], [0])
    right = ours.action_names.index("right")
    columns = []
    for _ in range(3):
        paddle = ours.step(np.array([right])).frames[0, 0]  # channel 0 is the paddle's
        columns.append(int(np.argmax(paddle.max(0))))
    assert columns == ([5, 6, 7] if sticky == 0 else [4, 4, 4])  # a new game's last action is no-op


@pytest.mark.parametrize("grows", [True, False])
def test_the_difficulty_can_stay_as_it_is(settings, grows):
    config = settings(env_args=(f"difficulty_ramping={str(grows).lower()}",))
    assert FAMILY.make("asterix", config)._game.env.ramping is grows


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("sticky=0", "env_args: 'sticky' is not known; did you mean 'sticky_action_prob'"),
        ("sticky_action_prob=1.5", "env_args: sticky_action_prob=1.5 is not allowed; allowed: 0 to 1"),
        ("sticky_action_prob=true", "env_args: sticky_action_prob=True is not allowed; allowed: 0 to 1"),
        ("difficulty_ramping=1", "env_args: difficulty_ramping=1 is not allowed; allowed: true, false"),
    ],
)
def test_other_arguments_are_refused(argument, message):
    with pytest.raises(InputError, match=re.escape(message)):
        pv.configure("minatar/breakout", env_args=[argument])


def test_a_frame_limit_ends_an_endless_game(settings):
    env = make("minatar/freeway", 1, training=True, config=settings(max_episode_frames=30))
    env.reset([0], [0])
    steps = [env.step(np.array([0])) for _ in range(8)]  # 4 frames each
    assert [bool(step.done[0]) for step in steps] == [False] * 7 + [True]
    assert not steps[-1].terminated[0]


def test_renderings_are_in_color(settings):
    env = make("minatar/seaquest", 1, training=True, config=settings())
    env.reset([0], [0])
    rendered = env.render(0)
    assert rendered.shape == (200, 200, 3)
    assert len(np.unique(rendered.reshape(-1, 3), axis=0)) >= 3


@pytest.mark.parametrize("game", GAMES)
def test_a_reset_forgets_everything_that_was_played_before(game):
    """Whatever a game grows (speed, difficulty, the last action that may stick) is forgotten."""
    old, rng = MinAtar(game), np.random.default_rng(0)
    old.reset(0)
    for _ in range(3000):
        if old.step(rng.integers(old.action_space.n)).done:
            old.reset(int(rng.integers(1000)))
    new = MinAtar(game)
    old.reset(7)
    new.reset(7)
    for action in rng.integers(new.action_space.n, size=300):
        result = new.step(action)
        assert old.step(action) == result
        assert np.array_equal(old.frame(), new.frame())
        if result.done:
            break


def test_ctrl_c_while_the_package_is_imported_is_not_lost(monkeypatch):
    """Its own import of seaborn is in a bare `except`."""

    class Interrupting:
        def find_spec(self, name, *_):
            if name == "seaborn":
                sys.meta_path.remove(self)
                signal.raise_signal(signal.SIGINT)

    for name in ("seaborn", "minatar", "minatar.environment"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        MinAtar("breakout")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
