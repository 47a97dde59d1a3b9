"""Lanes in processes of their own: the same play as in one process, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from playvirtual.config import EnvironmentConfig
from playvirtual.envs import gl, make, registry
from playvirtual.envs.atari import Atari
from playvirtual.envs.lanes import Lanes
from playvirtual.envs.parallel import ParallelLanes
from playvirtual.errors import InputError

pytest.importorskip("dm_control")
try:
    gl.choose()
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def config(settings) -> EnvironmentConfig:
    return settings(image_size=48, grayscale=False, action_repeat=4, max_episode_frames=16, reward_clip=0.0)


def alive(process: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(processes: list[int], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


@pytest.mark.parametrize("task", ["dmc/cheetah-run", "dmc/finger-spin"])
def test_frames_rewards_and_ends_are_those_of_one_process_to_the_bit(config, task):
    parallel = make(task, 3, training=False, config=config, workers=2)
    serial = make(task, 3, training=False, config=config, workers=1)
    assert isinstance(parallel, ParallelLanes)
    assert isinstance(serial, Lanes)
    assert parallel.frame_shape == serial.frame_shape
    assert parallel.action_space == serial.action_space
    rng = np.random.default_rng(0)
    for seeds in ([5, 6, 7], [8, 9, 10]):
        order = rng.permutation(3).tolist()
        assert np.array_equal(parallel.reset(order, seeds), serial.reset(order, seeds))
        for _ in range(5):  # the last of them after the end
            actions = rng.uniform(-1, 1, (3, *serial.action_space.shape)).astype(np.float32)
            for ours, theirs in zip(parallel.step(actions), serial.step(actions), strict=True):
                assert ours.dtype == theirs.dtype
                assert np.array_equal(ours, theirs)
            assert np.array_equal(parallel.picture(2), serial.picture(2))
    parallel.close()
    serial.close()


def test_atari_lanes_are_those_of_one_process_to_the_bit(settings):
    limited = settings(max_episode_frames=120)
    parallel = make("atari/breakout", 3, training=True, config=limited, workers=2)
    serial = make("atari/breakout", 3, training=True, config=limited, workers=1)
    assert isinstance(parallel, ParallelLanes)
    assert isinstance(serial, Atari)
    assert parallel.action_space == serial.action_space
    assert np.array_equal(parallel.reset([2, 0, 1], [5, 6, 7]), serial.reset([2, 0, 1], [5, 6, 7]))
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(60):  # beyond the time limit, and for one lane into another game
        if step == 20:
            assert np.array_equal(parallel.reset([1], [9]), serial.reset([1], [9]))
        actions = rng.integers(serial.action_space.n, size=3)
        results = parallel.step(actions), serial.step(actions)
        for ours, theirs in zip(*results, strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
        ended = max(ended, int(results[0].over.sum()))
    assert ended == 3
    parallel.close()
    serial.close()


@pytest.mark.parametrize(
    ("lanes", "share", "processes"),
    [(7, "2", 1), (16, "2", 2), (100, "2", 2), (24, "9", 3), (100, "1", 1), (200, "64", 16)],
)
def test_atari_games_are_many_before_they_get_processes(monkeypatch, lanes, share, processes):
    monkeypatch.setenv("OMP_NUM_THREADS", share)
    monkeypatch.setattr("playvirtual.cores.cores", lambda: 16)
    assert registry._workers("atari", lanes) == processes


def test_one_lane_stays_in_this_process(config):
    environment = make("dmc/cartpole-swingup", 1, training=True, config=config)
    assert isinstance(environment, Lanes)
    environment.close()


def test_closing_ends_every_process_even_twice(config):
    environment = ParallelLanes("dmc/cartpole-swingup", 2, training=False, config=config, workers=2)
    processes = [worker.process.pid for worker in environment._workers]
    assert all(map(alive, processes))
    environment.close()
    environment.close()
    assert not any(map(alive, processes))


def test_an_error_in_a_lane_reaches_the_caller(config):
    environment = ParallelLanes("dmc/cartpole-swingup", 2, training=False, config=config, workers=2)
    environment.reset([0, 1], [0, 1])
    with pytest.raises(RuntimeError, match="could not broadcast"):
        environment.step(np.zeros((2, 7), np.float32))  # one number moves the cart, not seven
    processes = [worker.process.pid for worker in environment._workers]
    environment.close()
    assert not any(map(alive, processes))


def test_bad_input_in_a_lane_is_bad_input_here_and_leaves_no_process(config):
    before = set(children())
    with pytest.raises(InputError, match="'dmc/cartpole-swingdown' is not known; did you mean"):
        ParallelLanes("dmc/cartpole-swingdown", 2, training=False, config=config, workers=2)
    assert set(children()) <= before


def test_a_process_that_dies_is_said_with_its_lanes(config):
    environment = ParallelLanes("dmc/cartpole-swingup", 3, training=False, config=config, workers=2)
    environment.reset([0, 1, 2], [0, 1, 2])
    environment._workers[1].process.kill()
    environment._workers[1].process.wait()
    with pytest.raises(RuntimeError, match=r"lanes 1 to 2 has ended \(exit code -9\)"):
        environment.step(np.zeros((3, 1), np.float32))
    environment.close()


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
from playvirtual.config import EnvironmentConfig
from playvirtual.envs.parallel import ParallelLanes
config = EnvironmentConfig(3, "zeros", 48, False, 4, 0, False, 0.0)
environment = ParallelLanes("dmc/cartpole-swingup", 2, training=False, config=config, workers=2)
environment.reset([0, 1], [0, 1])
try:
    print(*(worker.process.pid for worker in environment._workers), flush=True)
    while True:
        time.sleep(0.05)
finally:
    environment.step(__import__("numpy").zeros((2, 1), "float32"))
    environment.close()
    print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_caller(number):
    """Ctrl-C, which reaches the whole group, leaves the lanes usable until they are closed; a kill closes them."""
    command = [sys.executable, "-c", SCRIPT]  # without a main guard, as people write scripts
    caller = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert caller.stdout is not None
    processes = [int(word) for word in caller.stdout.readline().split()]
    assert len(processes) == 2
    os.killpg(caller.pid, number)
    output, _ = caller.communicate(timeout=60)
    assert gone(processes)
    assert ("closed" in output) == (number == signal.SIGINT)


def test_a_machine_that_cannot_draw_is_one_line_before_any_process_starts():
    code = SCRIPT.split("environment.reset")[0].replace("environment = ", "try: ")
    code += "except ValueError as error: print(error)"
    environment = {**os.environ, "MUJOCO_GL": "disabled"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "MUJOCO_GL: 'disabled' cannot draw here" in done.stdout
    assert done.stderr == ""


def test_the_processes_never_load_pytorch():
    """It would cost each of them a second and hundreds of megabytes."""
    code = "import sys, playvirtual.envs.lane_worker, playvirtual.envs.dmc; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def children() -> list[int]:
    """The processes that this one has started and that still run."""
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return [child for child in map(int, found.read_text().split()) if alive(child)]
