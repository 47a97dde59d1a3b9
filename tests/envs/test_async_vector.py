"""Environments in worker processes: the same play as in one process, and no process outlives its use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from playvirtual.envs import make, making, register_env, registry
from playvirtual.envs.async_vector import AsyncVectorEnv
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.families import gl
from playvirtual.envs.families.atari import Atari
from playvirtual.envs.families.toy import Catch
from playvirtual.envs.vector import SyncVectorEnv
from playvirtual.errors import InputError
from tests.waiting import HANG, wait_until

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


def wait_for_the_end_of(processes: list[int]) -> None:
    wait_until(lambda: not any(map(alive, processes)), f"the end of the processes {processes}")


def children() -> list[int]:
    """The processes that this one has started and that still run, oldest first."""
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return [child for child in map(int, found.read_text().split()) if alive(child)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["dmc/cheetah-run", "dmc/finger-spin"])
def test_frames_rewards_and_ends_are_bit_identical_to_those_of_one_process(config, task):
    parallel = make(task, 3, training=False, config=config, num_workers=2)
    serial = make(task, 3, training=False, config=config, num_workers=1)
    assert isinstance(parallel, AsyncVectorEnv)
    assert isinstance(serial, SyncVectorEnv)
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
            assert np.array_equal(parallel.render(2), serial.render(2))
    parallel.close()
    serial.close()


@pytest.mark.slow
def test_atari_is_bit_identical_to_one_process(settings):
    limited = settings(max_episode_frames=120)
    parallel = make("atari/breakout", 3, training=True, config=limited, num_workers=2)
    serial = make("atari/breakout", 3, training=True, config=limited, num_workers=1)
    assert isinstance(parallel, AsyncVectorEnv)
    assert isinstance(serial, Atari)
    assert parallel.action_space == serial.action_space
    assert np.array_equal(parallel.reset([2, 0, 1], [5, 6, 7]), serial.reset([2, 0, 1], [5, 6, 7]))
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(60):  # beyond the time limit, and for one environment into another game
        if step == 20:
            assert np.array_equal(parallel.reset([1], [9]), serial.reset([1], [9]))
        actions = rng.integers(serial.action_space.n, size=3)
        results = parallel.step(actions), serial.step(actions)
        for ours, theirs in zip(*results, strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
        ended = max(ended, int(results[0].done.sum()))
    assert ended == 3
    parallel.close()
    serial.close()


@pytest.mark.parametrize(
    ("num_envs", "share", "num_workers"),
    [(7, "2", 1), (16, "2", 2), (100, "2", 2), (24, "9", 3), (100, "1", 1), (200, "64", 16)],
)
def test_eight_atari_games_pay_for_a_worker(monkeypatch, num_envs, share, num_workers):
    monkeypatch.setenv("OMP_NUM_THREADS", share)
    monkeypatch.setattr("playvirtual.device.num_cores", lambda: 16)
    assert making.num_workers_for("atari/pong", num_envs) == num_workers


def test_toys_and_minatar_never_pay_for_workers(monkeypatch):
    monkeypatch.setattr("playvirtual.device.num_cores", lambda: 16)
    assert making.num_workers_for("toy/catch", 100) == making.num_workers_for("minatar/breakout", 100) == 1


@pytest.mark.slow
def test_the_number_of_workers_is_the_number_of_processes(config):
    before = set(children())
    env = make("dmc/cartpole-swingup", 3, training=False, config=config, num_workers=2)
    assert len(set(children()) - before) == 2
    env.close()
    assert set(children()) <= before


def test_one_environment_stays_in_this_process(config):
    before = set(children())
    env = make("dmc/cartpole-swingup", 1, training=True, config=config)
    assert isinstance(env, SyncVectorEnv)
    assert set(children()) <= before
    env.close()


@pytest.fixture
def cartpoles(config):
    """Three environments in two worker processes, and these processes."""
    before = set(children())
    env = AsyncVectorEnv("dmc/cartpole-swingup", 3, training=False, config=config, num_workers=2)
    yield env, [child for child in children() if child not in before]
    env.close()


@pytest.mark.slow
def test_closing_ends_every_process_even_twice(cartpoles):
    env, processes = cartpoles
    assert len(processes) == 2
    env.close()
    env.close()
    assert not any(map(alive, processes))


@pytest.mark.slow
def test_an_error_in_a_worker_reaches_the_caller(cartpoles):
    env, processes = cartpoles
    env.reset([0, 1, 2], [0, 1, 2])
    with pytest.raises(RuntimeError, match="cannot reshape"):
        env.step(np.zeros((3, 7), np.float32))  # one number moves the cart, not seven
    env.close()
    assert not any(map(alive, processes))


@pytest.mark.slow
def test_a_worker_that_dies_is_named_by_its_environments(cartpoles):
    env, processes = cartpoles
    env.reset([0, 1, 2], [0, 1, 2])
    os.kill(processes[1], signal.SIGKILL)
    wait_for_the_end_of(processes[1:])
    with pytest.raises(RuntimeError, match=r"environments 1 to 2 has ended \(exit code -9\)"):
        env.step(np.zeros((3, 1), np.float32))


def test_bad_input_in_a_worker_is_bad_input_here_and_leaves_no_process(config):
    before = set(children())
    with pytest.raises(InputError, match="'dmc/cartpole-swingdown' is not known; did you mean"):
        AsyncVectorEnv("dmc/cartpole-swingdown", 2, training=False, config=config, num_workers=2)
    assert set(children()) <= before


OUTSIDE = """
from playvirtual.envs import EnvFamily
from playvirtual.envs.families.toy import Catch
FAMILY = EnvFamily(tasks=("drop",), make=lambda name, config: Catch(), actions="discrete", envs_per_worker=1)
"""


def test_a_family_from_outside_is_rebuilt_in_workers_by_its_entry_point(config, tmp_path, monkeypatch):
    (tmp_path / "playvirtual_test_family.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    register_env("outside", entry_point="playvirtual_test_family:FAMILY")
    workers = make("outside/drop", 2, training=False, config=config, num_workers=2)
    here = make("toy/catch", 2, training=False, config=config)
    assert isinstance(workers, AsyncVectorEnv)
    assert np.array_equal(workers.reset([0, 1], [3, 4]), here.reset([0, 1], [3, 4]))
    assert np.array_equal(workers.step(np.array([0, 2])).frames, here.step(np.array([0, 2])).frames)
    workers.close()


def test_a_family_that_is_a_factory_of_this_process_stays_in_it(config, monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    register_env("outside", lambda name, config: Catch(), tasks=("drop",), actions="discrete")
    assert isinstance(make("outside/drop", 2, training=False, config=config, num_workers=2), SyncVectorEnv)
    with pytest.raises(InputError, match="'outside' is registered by a factory of this process"):
        AsyncVectorEnv("outside/drop", 2, training=False, config=config, num_workers=2)


SCRIPT = """
import os, time
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.async_vector import AsyncVectorEnv
config = EnvironmentConfig(3, "zeros", 48, False, 4, 0, False, 0.0)
env = AsyncVectorEnv("dmc/cartpole-swingup", 2, training=False, config=config, num_workers=2)
env.reset([0, 1], [0, 1])
try:
    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
    while True:
        time.sleep(0.05)
finally:
    env.step(__import__("numpy").zeros((2, 1), "float32"))
    env.close()
    print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_caller(number):
    """Ctrl-C, which reaches the whole group, leaves the workers usable until they are closed; a kill ends them."""
    command = [sys.executable, "-c", SCRIPT]  # without a main guard, as people write scripts
    caller = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert caller.stdout is not None
    processes = [int(word) for word in caller.stdout.readline().split()]
    assert len(processes) == 2
    os.killpg(caller.pid, number)
    output, _ = caller.communicate(timeout=HANG)
    wait_for_the_end_of(processes)
    assert ("closed" in output) == (number == signal.SIGINT)


def test_a_machine_that_cannot_render_is_one_line_before_any_worker_starts():
    code = SCRIPT.split("env.reset")[0].replace("env = ", "try: ")
    code += "except ValueError as error: print(error)"
    env = {**os.environ, "MUJOCO_GL": "disabled"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "MUJOCO_GL: 'disabled' cannot draw here" in done.stdout
    assert done.stderr == ""


def test_workers_never_load_pytorch():
    """It would cost each of them a second and hundreds of megabytes."""
    families = [f"playvirtual.envs.families.{name}" for name in ("atari", "dmc", "gym", "minatar", "toy")]
    code = f"import sys, playvirtual.envs.async_vector, {', '.join(families)}"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
