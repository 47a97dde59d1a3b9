"""Atari's protocol on an emulator whose games are written down: what it is asked, and what is made of its answers."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, NamedTuple

import ale_py.vector_env
import numpy as np
import pytest

from playvirtual.config.build import build
from playvirtual.envs import make

COLOURS = np.arange(100 * 100 * 3).reshape(100, 100, 3).astype(np.uint8)


class Answer(NamedTuple):
    """What the emulator says after an action of four frames."""

    lives: int
    score: float = 0.0
    over: bool = False


# Three lives: one is won, two are lost one after the other, the last ends the game.
GAME = [Answer(3, 10), Answer(4), Answer(3, -7), Answer(3), Answer(2), Answer(1, 400), Answer(0, 5, over=True)]


class Emulator:
    """Stands in for ALE's vectorized emulator; plays `game`, of three lives at its start."""

    made: list[Emulator]
    game: list[Answer]

    def __init__(self, *args: Any, **options: Any) -> None:
        bound = inspect.signature(REAL.__init__).bind(self, *args, **options)
        bound.apply_defaults()
        self.options = bound.arguments
        self.ale = SimpleNamespace(get_action_set=lambda: range(5))
        self.seeds: list[int] = []
        self.sent: list[int] = []
        self.made.append(self)

    def reset(self, *, seed: Any) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(int(seed[0]))
        self.time, self.sent = 0, []
        return self._screen(), {"lives": np.array([3]), "episode_frame_number": np.array([7])}

    def send(self, action: Any) -> None:
        assert action.shape == (1,)
        self.sent.append(int(action[0]))

    def recv(self) -> tuple[Any, ...]:
        answer = self.game[self.time]
        self.time += 1
        flags = np.array([answer.over]), np.array([False])
        return self._screen(), np.array([answer.score]), *flags, {"lives": np.array([answer.lives])}

    def _screen(self) -> Any:
        size = (self.options["img_height"], self.options["img_width"])
        screen = np.full((1, 1, *size), (100 * (self.seeds[-1] % 2) + self.time) % 256, np.uint8)
        return screen if self.options["grayscale"] else COLOURS[: size[0], : size[1]][None, None]

    def close(self) -> None:
        pass


REAL = ale_py.vector_env.AtariVectorEnv


@pytest.fixture(autouse=True)
def emulators(monkeypatch: pytest.MonkeyPatch) -> list[Emulator]:
    """All emulators that a test has made."""
    monkeypatch.setattr(ale_py.vector_env, "AtariVectorEnv", Emulator)
    monkeypatch.setattr(Emulator, "made", [], raising=False)
    monkeypatch.setattr(Emulator, "game", GAME, raising=False)
    return Emulator.made


def play(training: bool, **options: Any) -> list[Any]:
    config = build("atari/pong", **options).environment
    env = make("atari/pong", 1, training=training, config=config)
    first = env.reset([0], [1])
    assert (first == 100).all()
    steps = [env.step(np.array([time % 5])) for time in range(len(Emulator.game))]
    env.close()
    return steps


def test_what_the_emulator_is_asked_for(emulators: list[Emulator]) -> None:
    """No sticky actions, minimal actions, 4 frames per action, the maximum of two screens, 0 to 30 no-ops, no FIRE."""
    config = build("atari/pong").environment
    make("atari/pong", 2, training=True, config=config, num_workers=1)
    expected = {
        "game": "pong",
        "num_envs": 1,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "continuous": False,
        "max_num_frames_per_episode": 2**31 - 1,  # none of its own
        "img_height": 84,
        "img_width": 84,
        "grayscale": True,
        "stack_num": 1,
        "frameskip": 4,
        "maxpool": True,
        "noop_max": 31,  # ALE draws one less at most
        "episodic_life": False,
        "life_loss_info": False,
        "reward_clipping": False,
        "use_fire_reset": False,
    }
    assert len(emulators) == 2
    for emulator in emulators:
        assert {name: emulator.options[name] for name in expected} == expected


@pytest.mark.parametrize(("frames", "repeat", "actions"), [(0, 4, 27_000), (50, 3, 16), (2, 4, 1)])
def test_an_episode_has_the_actions_that_fit_into_its_frames(
    monkeypatch: pytest.MonkeyPatch, frames: int, repeat: int, actions: int
) -> None:
    """No-ops at the start do not count; the limit is done and not terminated, in every episode anew."""
    monkeypatch.setattr(Emulator, "game", [Answer(3)] * (actions + 1))
    config = build("atari/pong", max_episode_frames=frames, action_repeat=repeat).environment
    env = make("atari/pong", 1, training=True, config=config)
    for seed in (1, 2):
        env.reset([0], [seed])
        steps = [env.step(np.array([0])) for _ in range(actions)]
        assert [bool(step.done[0]) for step in steps] == [False] * (actions - 1) + [True]
        assert not any(step.terminated[0] for step in steps)
    env.close()


def test_how_options_reach_the_emulator(emulators: list[Emulator]) -> None:
    changes = {"action_repeat": 3, "image_size": 64, "grayscale": False}
    env = make("atari/pong", 1, training=True, config=build("atari/pong", **changes).environment)
    assert env.frame_shape == (3, 64, 64)
    frame = env.reset([0], [0])[0]
    assert np.array_equal(frame[1], COLOURS[:64, :64, 1])
    assert np.array_equal(frame[2], COLOURS[:64, :64, 2])
    names = ("frameskip", "img_height", "img_width", "grayscale")
    assert [emulators[0].options[name] for name in names] == [3, 64, 64, False]


def test_in_training_a_lost_life_is_terminated_and_the_game_goes_on(emulators: list[Emulator]) -> None:
    """Winning a life is no loss; the loss of the last life is the end of the game. Rewards are raw."""
    steps = play(training=True)
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True, False, True, True, True]
    assert [bool(step.done[0]) for step in steps] == [False] * 6 + [True]
    assert [float(step.rewards[0]) for step in steps] == [10, 0, -7, 0, 0, 400, 5]
    assert [int(step.frames.max()) for step in steps] == [101, 102, 103, 104, 105, 106, 107]
    assert emulators[0].seeds == [1]  # nothing was reset on the way
    assert emulators[0].sent == [0, 1, 2, 3, 4, 0, 1]


def test_lives_are_counted_from_every_reset_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first action of a game costs one of its three lives, whatever was left of the game before."""
    monkeypatch.setattr(Emulator, "game", [Answer(2), Answer(1), Answer(1, over=True)])
    env = make("atari/pong", 1, training=True, config=build("atari/pong").environment)
    for seed in (1, 2):
        env.reset([0], [seed])
        assert [bool(env.step(np.array([0])).terminated[0]) for _ in range(2)] == [True, True]
    env.close()


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "switched-off"])
def test_otherwise_only_the_end_of_the_game_is_terminated(training: bool) -> None:
    steps = play(training, life_loss_is_terminal=not training)
    assert [bool(step.terminated[0]) for step in steps] == [False] * 6 + [True]
    assert [bool(step.done[0]) for step in steps] == [False] * 6 + [True]


def test_a_game_played_on_without_lives_and_one_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drop to 0 lives is neither a lost life nor the end; a time limit is done and not terminated."""
    monkeypatch.setattr(Emulator, "game", [Answer(0), Answer(0, 3), Answer(2), Answer(1)])
    steps = play(training=True, max_episode_frames=16)
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, True]  # the life lost at the end
    assert [bool(step.done[0]) for step in steps] == [False, False, False, True]
    monkeypatch.setattr(Emulator, "game", [Answer(3), Answer(3, 2)])
    steps = play(training=True, max_episode_frames=8)
    assert [bool(step.terminated[0]) for step in steps] == [False, False]
    assert [bool(step.done[0]) for step in steps] == [False, True]


def test_environments_are_separate_and_one_that_is_done_waits(emulators: list[Emulator]) -> None:
    """Lives, rewards and actions of each are its own; a reset gives all of its lives back."""
    env = make("atari/pong", 2, training=True, config=build("atari/pong").environment, num_workers=1)
    frames = env.reset([1, 0], [3, 2])
    assert frames[:, 0, 0, 0].tolist() == [100, 0]
    steps = [env.step(np.array([0, 4])) for _ in GAME]
    assert [step.terminated.tolist() for step in steps][2:] == [[True] * 2, [False] * 2, *[[True] * 2] * 3]
    assert steps[-1].done.all()
    waiting = env.step(np.array([1, 1]))
    assert (waiting.rewards.tolist(), waiting.done.tolist()) == ([0, 0], [True, True])
    assert [emulator.sent for emulator in emulators] == [[0] * 7, [4] * 7]
    env.reset([1], [5])
    after = env.step(np.array([2, 2]))
    assert (after.rewards.tolist(), after.done.tolist(), after.terminated.tolist()) == (
        [0, 10],
        [True, False],
        [True, False],
    )
    assert after.frames[:, 0, 0, 0].tolist() == [7, 101]
    assert [emulator.seeds for emulator in emulators] == [[2], [3, 5]]
