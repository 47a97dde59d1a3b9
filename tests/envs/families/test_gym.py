"""Gymnasium environments of every supported kind, and the errors of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from playvirtual.envs import check, make
from playvirtual.envs.families.gym import prepare_drawing
from playvirtual.errors import InputError
from tests.waiting import HANG


class Painted(gymnasium.Env):
    """Shows its last action as a shade of red on a (20, 40) image; three frames long."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, action_space, observation_space=None, render_mode=None, terminates=True):
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(0, 255, (20, 40, 3), np.uint8)
        self.render_mode, self.terminates = render_mode, terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.shade, self.taken = 0, int(self.np_random.integers(256)), []
        return self.look(), {}

    def step(self, action):
        self.time += 1
        self.taken.append(action)
        self.shade = int(np.sum(action)) % 256
        return self.look(), 0.5, self.time == 3 and self.terminates, False, {}

    def look(self):
        space = self.observation_space
        if len(space.shape) != 3:
            return np.zeros(space.shape, space.dtype)
        return self.render() if space.shape[2] == 3 else self.render().transpose(2, 0, 1)[: space.shape[0]]

    def render(self):
        image = np.zeros((20, 40, 3), np.uint8)
        image[..., 0] = self.shade
        return image


VECTOR = spaces.Box(-1, 1, (4,), np.float32)
LOW, HIGH = np.array([[0.0, 10.0]], np.float32), np.array([[2.0, 30.0]], np.float32)
VARIANTS = {
    "PlayvirtualImages-v0": {"action_space": spaces.Discrete(5, start=3)},
    "PlayvirtualRendered-v0": {"action_space": spaces.Discrete(5), "observation_space": VECTOR},
    "PlayvirtualBox-v0": {"action_space": spaces.Box(LOW, HIGH)},
    "PlayvirtualFirst3-v0": {"observation_space": spaces.Box(0, 255, (3, 20, 40), np.uint8)},
    "PlayvirtualFirst1-v0": {"observation_space": spaces.Box(0, 255, (1, 20, 40), np.uint8)},
    "PlayvirtualFour-v0": {"observation_space": spaces.Box(0, 255, (20, 40, 4), np.uint8)},
    "PlayvirtualMulti-v0": {"action_space": spaces.MultiDiscrete([2, 3])},
    "PlayvirtualUnbounded-v0": {"action_space": spaces.Box(-np.inf, np.inf, (2,))},
}
for name, kwargs in VARIANTS.items():
    gymnasium.register(name, Painted, kwargs={"action_space": spaces.Discrete(5), **kwargs})
gymnasium.register(
    "PlayvirtualTimed-v0",
    Painted,
    kwargs={"action_space": spaces.Discrete(5), "terminates": False},
    max_episode_steps=4,
)


def test_image_observations_are_resized_and_discrete_actions_count_from_0(settings):
    config = settings(image_size=10, grayscale=False, action_repeat=2)
    env = make("gym/PlayvirtualImages-v0", 1, training=True, config=config)
    assert env.frame_shape == (3, 10, 10)
    assert env.action_space == spaces.Discrete(5)
    env.reset([0], [0])
    step = env.step(np.array([4]))
    assert (step.frames[0, 0] == 7).all()
    assert not step.frames[0, 1:].any()
    assert step.rewards[0] == 1.0
    assert not step.done[0]
    last = env.step(np.array([0]))  # the third frame ends it, the action is not repeated
    assert last.rewards[0] == 0.5
    assert last.terminated[0]
    assert last.done[0]


@pytest.mark.parametrize("channels", [1, 3])
def test_colors_may_come_first(settings, channels):
    config = settings(image_size=10, grayscale=False, action_repeat=1)
    env = make(f"gym/PlayvirtualFirst{channels}-v0", 1, training=True, config=config)
    assert env.frame_shape == (channels, 10, 10)
    env.reset([0], [0])
    step = env.step(np.array([4]))
    assert (step.frames[0, 0] == 4).all()
    assert not step.frames[0, 1:].any()
    assert env.render(0).shape == (140, 280, 3)


def test_four_channels_are_refused(settings):
    with pytest.raises(InputError, match=r"uint8 of shape \(20, 40, 4\); allowed: uint8, \(H, W\), \(H, W, 1\)"):
        make("gym/PlayvirtualFour-v0", 1, training=True, config=settings())


def test_the_games_of_ale_are_known_and_silent():
    code = """
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs import make
config = EnvironmentConfig(4, "zeros", 84, True, 1, 0, False, 0.0)
pong = make("gym/ALE/Pong-v5", 1, training=True, config=config)
print(pong.frame_shape, pong.action_space)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr) == ("(1, 84, 84) Discrete(6)\n", "")
    with pytest.raises(InputError, match="did you mean 'gym/ALE/Pong-v5'"):
        check("gym/ALE/Pong-v6")


def test_other_observations_are_replaced_by_what_is_rendered(settings):
    env = make("gym/PlayvirtualRendered-v0", 2, training=True, config=settings(image_size=12))
    assert env.frame_shape == (1, 12, 12)
    frames = env.reset([0, 1], [0, 1])
    shades = [np.random.default_rng(seed).integers(256) for seed in (0, 1)]
    assert frames[:, 0, 0, 0].tolist() == [round(0.299 * shade) for shade in shades]
    assert env.render(0).shape == (140, 280, 3)


def test_a_truncated_episode_is_done_but_not_terminated(settings):
    config = settings(action_repeat=1, image_size=8)
    env = make("gym/PlayvirtualTimed-v0", 1, training=True, config=config)
    env.reset([0], [0])
    steps = [env.step(np.array([0])) for _ in range(4)]
    assert [bool(step.done[0]) for step in steps] == [False, False, False, True]
    assert not any(step.terminated[0] for step in steps)


def test_a_box_is_flattened_and_scaled(settings):
    env = make("gym/PlayvirtualBox-v0", 1, training=True, config=settings(action_repeat=1, image_size=8))
    assert env.action_space == spaces.Box(-1, 1, (2,), np.float32)
    env.reset([0], [0])
    for action, sum_of_both in (([-1, -1], 10), ([0, 0], 21), ([1, 1], 32), ([1, -1], 12)):
        env.reset([0], [0])
        frame = env.step(np.array([action], np.float32)).frames[0, 0]
        assert (frame == round(0.299 * sum_of_both)).all()


@pytest.mark.parametrize("name", ["PlayvirtualMulti-v0", "PlayvirtualUnbounded-v0"])
def test_other_action_spaces_are_named_in_one_line(settings, name):
    with pytest.raises(InputError, match=r"(MultiDiscrete|Box\(-inf).*allowed: Discrete, Box") as caught:
        make(f"gym/{name}", 1, training=True, config=settings())
    assert "\n" not in str(caught.value)


def test_an_id_may_name_its_module(settings, tmp_path, monkeypatch):
    source = """
import gymnasium
from tests.envs.families.test_gym import Painted
gymnasium.register("PlayvirtualFromModule-v0", Painted, kwargs={"action_space": gymnasium.spaces.Discrete(7)})
"""
    (tmp_path / "playvirtual_test_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="'gym/PlayvirtualFromModule-v0' is not known"):
        check("gym/PlayvirtualFromModule-v0")
    task = "gym/playvirtual_test_module:PlayvirtualFromModule-v0"
    check(task)
    env = make(task, 1, training=True, config=settings(image_size=10))
    assert env.action_space == spaces.Discrete(7)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("no_such_module", "there is no such module; allowed: an installed module, or one of the current folder, "),
        ("..", "TypeError: the 'package' argument"),
        ("playvirtual_test_damaged", "SyntaxError: '(' was never closed"),
        ("playvirtual_test_script", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_in_one_line(tmp_path, monkeypatch, module, reason):
    (tmp_path / "playvirtual_test_damaged.py").write_text("def broken(\n")
    (tmp_path / "playvirtual_test_script.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as caught:
        check(f"gym/{module}:X-v0")
    assert str(caught.value).startswith(f"task: 'gym/{module}:X-v0' cannot import the module {module!r}: {reason}")
    assert "\n" not in str(caught.value)


def test_cartpole_is_seen_as_it_is_drawn(settings):
    pytest.importorskip("pygame", reason="Gymnasium draws CartPole with pygame")
    env = make("gym/CartPole-v1", 1, training=True, config=settings(image_size=64, action_repeat=1))
    frame = env.reset([0], [0])[0]
    assert frame.shape == (1, 64, 64)
    assert frame.max() == 255
    assert frame.min() < 128
    rewards = 0.0
    while not (step := env.step(np.array([0]))).done[0]:
        rewards += float(step.rewards[0])
    assert step.terminated[0]
    assert 5 < rewards < 20
    env.close()


class Failing(Painted):
    """Raises an error of several lines where it is told to."""

    def __init__(self, at, error):
        super().__init__(spaces.Discrete(2))
        self.at, self.error = at, error
        self.fail("be made")

    def fail(self, at):
        if at == self.at:
            raise self.error

    def reset(self, *, seed=None, options=None):
        self.fail("be reset")
        return super().reset(seed=seed)


@pytest.mark.parametrize(
    ("at", "error", "said"),
    [
        (
            "be made",
            ImportError("no module named 'physics'\nsee\nthe manual"),
            "ImportError: no module named 'physics' see",
        ),
        ("be made", ZeroDivisionError("by\nzero"), "ZeroDivisionError: by zero"),
        ("be made", KeyError(), "KeyError"),
        ("be reset", RuntimeError("no\nlevel"), "RuntimeError: no level"),
    ],
)
def test_an_environment_that_fails_at_the_start_says_so_in_one_line(settings, at, error, said):
    gymnasium.register("playvirtual-test/Failing-v0", entry_point=Failing, kwargs={"at": at, "error": error})
    try:
        with pytest.raises(InputError) as caught:
            make("gym/playvirtual-test/Failing-v0", 1, training=True, config=settings())
    finally:
        del gymnasium.registry["playvirtual-test/Failing-v0"]
    assert str(caught.value).startswith(f"task: 'gym/playvirtual-test/Failing-v0' cannot {at}: {said}")
    assert "\n" not in str(caught.value)


DRAW = """
import hashlib, sys
if sys.argv[1] == "plain":
    import gymnasium
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    rendered = env.render()
else:
    from playvirtual.envs.env import EnvironmentConfig
    from playvirtual.envs import make
    config = EnvironmentConfig(1, "zeros", 64, False, 1, 0, False, 0.0)
    env = make("gym/CartPole-v1", 1, training=True, config=config)
    env.reset([0], [0])
    rendered = env.render(0)
print(rendered.shape, hashlib.sha256(rendered.tobytes()).hexdigest())
"""


def test_drawing_without_a_desktop_is_silent_and_the_same() -> None:
    pytest.importorskip("pygame", reason="Gymnasium draws CartPole with pygame")
    desktop = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER")
    env = {name: value for name, value in os.environ.items() if name not in desktop}
    plain, ours = (
        subprocess.run([sys.executable, "-c", DRAW, who], env=env, capture_output=True, text=True, timeout=HANG)
        for who in ("plain", "ours")
    )
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]


def test_environments_that_draw_nothing_for_the_dummy_driver_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """highway-env's show black images where SDL's driver is called "dummy"."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_drawing()
    assert os.environ["SDL_VIDEODRIVER"] not in ("", "dummy")
