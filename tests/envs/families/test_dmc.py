"""The DeepMind Control Suite: the benchmark's six tasks, and comparisons with the suite itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from playvirtual.config.build import build
from playvirtual.envs import make
from playvirtual.envs.families import gl
from playvirtual.envs.families.dmc import TIME_LIMIT, DMControl, task_names
from playvirtual.errors import InputError
from tests.waiting import HANG

pytest.importorskip("dm_control")
try:
    gl.choose()
    NO_PIXELS = ""
except InputError as error:
    NO_PIXELS = str(error)
drawn = pytest.mark.skipif(bool(NO_PIXELS), reason=NO_PIXELS)

SIX = {  # task: (action dimensions, action repeat of the paper)
    "finger-spin": (2, 2),
    "cartpole-swingup": (1, 8),
    "reacher-easy": (2, 4),
    "cheetah-run": (6, 4),
    "walker-walk": (6, 2),
    "ball_in_cup-catch": (2, 4),
}


@pytest.fixture
def pixels(settings):
    return settings(frame_stack=3, image_size=100, grayscale=False, life_loss_is_terminal=False, reward_clip=0.0)


@drawn
def test_the_names_are_the_suites():
    from dm_control import suite

    assert task_names() == [f"{domain}-{task}" for domain, task in suite.ALL_TASKS]


@drawn
@pytest.mark.parametrize("task", SIX)
def test_spaces_and_frames_of_the_six_tasks(pixels, task):
    env = make(f"dmc/{task}", 1, training=True, config=pixels)
    assert env.frame_shape == (3, 100, 100)
    assert env.action_space.shape == (SIX[task][0],)
    assert env.action_space.low.min() == -1
    assert env.action_space.high.max() == 1
    frame = env.reset([0], [0])[0]
    assert frame.shape == (3, 100, 100)
    assert frame.std() > 5
    assert env.render(0).shape == (300, 300, 3)
    env.close()


@drawn
def test_pixels_and_rewards_are_the_suites_own(pixels):
    from dm_control import suite

    ours = make("dmc/walker-walk", 1, training=True, config=pixels)
    theirs = suite.load("walker", "walk", task_kwargs={"random": 7})
    frame = ours.reset([0], [7])[0]
    theirs.reset()
    rng = np.random.default_rng(0)
    for _ in range(3):
        # The off-screen buffer is smaller than the suite's; the bytes are the same.
        assert np.array_equal(frame.transpose(1, 2, 0), theirs.physics.render(100, 100, camera_id=0))
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        step = ours.step(action[None])
        reward = sum(theirs.step(action.astype(np.float64)).reward for _ in range(4))
        assert step.rewards[0] == pytest.approx(reward, rel=1e-6)
        frame = step.frames[0]
    ours.close()


@drawn
@pytest.mark.parametrize("name", [*SIX, "fish-swim", "hopper-hop", "manipulator-bring_ball", "swimmer-swimmer6"])
def test_play_is_the_suites_own_though_its_observations_are_not_computed(name):
    from dm_control import suite

    ours = DMControl(name, 32, grayscale=False)
    theirs = suite.load(*name.split("-"), task_kwargs={"random": np.random.RandomState(0)})
    theirs.task.random.seed(3)
    ours.reset(3)
    theirs.reset()
    bounds, rng = theirs.action_spec(), np.random.default_rng(0)
    for _ in range(30):
        unit = rng.uniform(-1, 1, bounds.shape).astype(np.float32)
        stretched = bounds.minimum + (unit.astype(np.float64) + 1) / 2 * (bounds.maximum - bounds.minimum)
        assert ours.step(unit).reward == theirs.step(stretched).reward
    assert np.array_equal(ours.frame().transpose(1, 2, 0), theirs.physics.render(32, 32, camera_id=0))
    ours.close()


@drawn
def test_an_episode_is_1000_frames_and_ends_by_time_alone():
    task = DMControl("cartpole-swingup", 84, grayscale=False)
    task.reset(0)
    steps = [task.step(np.zeros(1, np.float32)) for _ in range(1000)]
    assert [step.done for step in steps] == [False] * 999 + [True]
    assert not any(step.terminated for step in steps)
    task.close()


@drawn
@pytest.mark.parametrize(("task", "says"), [("cartpole-swingup", False), ("lqr-lqr_2_1", True)])
def test_a_scored_episode_is_said_to_have_no_limit_where_the_suite_gives_it_none(settings, caplog, task, says):
    caplog.set_level("INFO", "playvirtual")
    config = settings(image_size=32, max_episode_frames=0)
    make(f"dmc/{task}", 1, training=False, config=config).close()
    said = [record.getMessage() for record in caplog.records if "declares no time limit" in record.getMessage()]
    assert len(said) == says


@drawn
@pytest.mark.slow
def test_no_episode_is_endless_under_its_tasks_defaults():
    from dm_control import suite

    for name in task_names():
        own = suite.load(*name.split("-"))._step_limit
        assert min(own, build(f"dmc/{name}").environment.max_episode_frames or math.inf) == 1000, name
        assert own == (math.inf if name.startswith("lqr-") else TIME_LIMIT), name


@drawn
def test_a_frame_is_drawn_once_per_action_and_never_for_an_environment_that_is_done(settings, monkeypatch):
    from dm_control.mujoco import Camera

    config = settings(image_size=32, grayscale=True, action_repeat=8, max_episode_frames=24)
    env = make("dmc/cartpole-swingup", 2, training=True, config=config, num_workers=1)
    draw, drawings = Camera.render, []
    monkeypatch.setattr(Camera, "render", lambda camera: drawings.append(camera) or draw(camera))
    env.reset([0], [0])
    steps = [env.step(np.zeros((2, 1), np.float32)) for _ in range(5)]
    assert [bool(step.done[0]) for step in steps] == [False, False, True, True, True]
    assert not steps[-1].terminated.any()
    assert len(drawings) == 1 + 3
    env.close()


@drawn
def test_actions_are_scaled_to_the_tasks_bounds(monkeypatch):
    from dm_control import suite
    from dm_control.rl import control

    task, given = DMControl("quadruped-walk", 32, grayscale=True), []
    step = control.Environment.step
    monkeypatch.setattr(control.Environment, "step", lambda env, action: given.append(action) or step(env, action))
    task.reset(0)
    for value in (-1, 0, 1, 7, -7):
        task.step(np.full(12, value, np.float32))
    bounds = suite.load("quadruped", "walk").action_spec()
    low, high = bounds.minimum, bounds.maximum
    assert (high != 1).any()
    assert np.allclose(given, [low, (low + high) / 2, high, high, low])  # what lies beyond is clipped
    task.close()


@drawn
def test_a_task_that_ends_itself_is_terminated():
    """LQR ends where it has come to rest."""
    task = DMControl("lqr-lqr_2_1", 8, grayscale=True)
    task.reset(0)
    assert task.step(np.zeros(1, np.float32))[1:] == (False, False)
    with task._env.physics.reset_context():
        task._env.physics.data.qpos[:] = 0
    step = task.step(np.zeros(1, np.float32))
    assert step[1:] == (True, True)
    assert step.reward == pytest.approx(1.0)
    task.close()


@drawn
def test_the_back_end_names_itself():
    name, renderer = gl.choose()
    assert gl.backend() == f"{name} ({renderer})"
    assert renderer


@drawn
def test_a_back_end_may_be_written_in_capitals():
    code = "from playvirtual.envs.families.dmc import DMControl\n"
    code += "DMControl('cartpole-swingup', 8, grayscale=True).close()"
    code += "\nimport os; print(os.environ['MUJOCO_GL'])"
    name, _ = gl.choose()
    env = {**os.environ, "MUJOCO_GL": f"{name.upper()} "}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (0, f"{name}\n"), done.stderr


def test_a_back_end_that_cannot_draw_is_one_line():
    code = "from playvirtual.envs.families import gl\ntry: gl.choose()\nexcept ValueError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MUJOCO_GL": "disabled"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert "MUJOCO_GL: 'disabled'" in done.stdout
    assert "apt-get install" in done.stdout


@drawn
@pytest.mark.slow
def test_a_training_begins_in_a_process_that_has_drawn(tmp_path):
    """In one of its own: Triton, if it comes after Mesa, crashes the interpreter, and these tests have it loaded."""
    sizes = [
        "--steps",
        "240",
        "--learning-starts",
        "20",
        "--batch-size",
        "4",
        "--auxiliary-batch-size",
        "4",
        "--K",
        "1",
        "--hidden",
        "32",
        "--image-size",
        "32",
        "--crop-size",
        "28",
        "--channels",
        "8",
        "--kernel-sizes",
        "3",
        "--strides",
        "2",
        "--max-episode-frames",
        "80",
    ]
    words = [sys.executable, "-m", "playvirtual", "train", "dmc/cartpole-swingup", *sizes, "--eval-episodes", "1"]
    done = subprocess.run([*words, "--run-dir", str(tmp_path / "run")], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "dmc/cartpole-swingup playvirtual, seed 1: score" in done.stdout
