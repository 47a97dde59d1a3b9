"""DMControl's wrapper on a suite whose episodes are written down; needs neither dm_control nor a renderer."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from playvirtual.envs.families import dmc
from playvirtual.envs.vector import SyncVectorEnv


class Suite:
    """One task of bounds [0, 4] × [−1, 1] × unlimited; its rewards are 1, 2, 4, … and its episodes 5 frames long."""

    def __init__(self, last_discount: float = 1.0) -> None:
        self.given: list[Any] = []
        self.seeds: list[int] = []
        self.last_discount = last_discount
        self.task = SimpleNamespace(random=SimpleNamespace(seed=self.seeds.append), get_observation=None)
        self.physics = SimpleNamespace(model=SimpleNamespace(vis=SimpleNamespace(global_=SimpleNamespace())))
        self.time = 0

    def action_spec(self) -> Any:
        low, high = np.array([0.0, -1.0, -1e10]), np.array([4.0, 1.0, 1e10])
        return SimpleNamespace(minimum=low, maximum=high, shape=(3,))

    def reset(self) -> None:
        self.time = 0

    def step(self, action: Any) -> Any:
        self.given.append(np.array(action))
        self.time += 1
        last = self.time == 5
        discount = self.last_discount if last else 1.0
        return SimpleNamespace(reward=2.0 ** (self.time - 1), discount=discount, last=lambda: last)

    def close(self) -> None:
        pass


class Camera:
    """Shows the time in its colors, (10 t, 20 t, 30 t)."""

    def __init__(self, physics: Any, height: int, width: int, camera_id: int) -> None:
        assert camera_id == 0
        self.shape = (height, width, 1)
        self.suite = next(suite for suite in SUITES if suite.physics is physics)

    def render(self) -> Any:
        color = np.array([10, 20, 30], np.uint8) * self.suite.time
        return np.tile(color, self.shape).astype(np.uint8)


SUITES: list[Suite] = []


@pytest.fixture(autouse=True)
def suites(monkeypatch: pytest.MonkeyPatch) -> list[Suite]:
    """The tasks that were loaded; those of LQR end by failure."""
    SUITES.clear()
    package, mujoco = ModuleType("dm_control"), ModuleType("dm_control.mujoco")

    def load(domain: str, task: str, **_: Any) -> Suite:
        SUITES.append(Suite(last_discount=0.0 if domain == "lqr" else 1.0))
        return SUITES[-1]

    package.suite = SimpleNamespace(load=load)
    mujoco.Camera = Camera
    monkeypatch.setitem(sys.modules, "dm_control", package)
    monkeypatch.setitem(sys.modules, "dm_control.mujoco", mujoco)
    monkeypatch.setattr(dmc, "require_package", lambda: None)
    monkeypatch.setattr(dmc.gl, "choose", lambda: None)
    return SUITES


def step(env: dmc.DMControl, action: list[float]) -> Any:
    return env.step(np.array(action, np.float32))


def test_actions_are_scaled_clipped_and_unlimited_forces_passed_on(suites: list[Suite]) -> None:
    env = dmc.DMControl("walker-walk", 8, grayscale=False)
    env.reset(4)
    for action in ([-1, -1, -1], [0, 0, 0], [1, 1, 1], [0.5, -0.25, 0.75], [3, -3, 3]):
        step(env, action)
    expected = [[0, -1, -1], [2, 0, 0], [4, 1, 1], [3, -0.25, 0.75], [4, -1, 1]]
    np.testing.assert_allclose(suites[0].given, expected, atol=1e-12)
    assert suites[0].seeds == [4]
    assert env.action_space.shape == (3,)


@pytest.mark.parametrize(("task", "terminated"), [("walker-walk", False), ("lqr-lqr_2_1", True)])
def test_a_time_limit_truncates_and_a_failure_terminates(task: str, terminated: bool) -> None:
    env = dmc.DMControl(task, 8, grayscale=False)
    env.reset(0)
    steps = [step(env, [0, 0, 0]) for _ in range(5)]
    assert [(s.reward, s.terminated, s.done) for s in steps] == [
        (1.0, False, False),
        (2.0, False, False),
        (4.0, False, False),
        (8.0, False, False),
        (16.0, terminated, True),
    ]


def test_an_action_is_repeated_up_to_the_end_and_its_rewards_summed(settings: Any) -> None:
    """Five frames in steps of two: 1 + 2, 4 + 8, and 16 of the one frame that is left."""
    config = settings(image_size=8, grayscale=False, action_repeat=2)
    singles = [dmc.FAMILY.make("walker-walk", config) for _ in range(2)]
    envs = SyncVectorEnv(singles, action_repeat=config.action_repeat, max_frames=config.max_episode_frames)
    assert envs.reset([1, 0], [9, 8])[:, :, 0, 0].tolist() == [[0, 0, 0]] * 2
    steps = [envs.step(np.zeros((2, 3), np.float32)) for _ in range(3)]
    assert [s.rewards.tolist() for s in steps] == [[3, 3], [12, 12], [16, 16]]
    assert [s.done.tolist() for s in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(s.terminated.any() for s in steps)
    assert [s.frames[0, :, 3, 5].tolist() for s in steps] == [[20, 40, 60], [40, 80, 120], [50, 100, 150]]
    envs.close()


def test_gray_frames_are_luma(settings: Any) -> None:
    env = dmc.FAMILY.make("walker-walk", settings(image_size=8, grayscale=True))
    env.reset(0)
    env.step(np.zeros(3, np.float32))
    assert env.frame_shape == (1, 8, 8)
    assert set(env.frame().flatten().tolist()) == {round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)}
