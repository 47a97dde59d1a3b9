"""Compares envs in one process with envs in worker processes: the same episodes, in turns.

python benchmarks/async_envs.py [TASK …] [--num-envs 10] [--steps 100] [--repeats 3]
Prints medians of the seconds to make, first reset and close all envs and of the milliseconds per step of all envs, and
the ratio of the step times. Atari's envs in one process use threads.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from gymnasium import spaces
from script import Parser, checked, run, whole

from playvirtual.device import num_cores
from playvirtual.envs import VectorEnv
from playvirtual.envs.async_vector import AsyncVectorEnv
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.making import make
from playvirtual.errors import InputError

TASKS = ["dmc/cartpole-swingup", "dmc/cheetah-run", "minatar/breakout", "toy/catch"]


def make_envs(task: str, num_envs: int, config: EnvironmentConfig, num_workers: int) -> VectorEnv:
    """Envs in `num_workers` processes, also of a task that `make` would keep in this process."""
    if num_workers > 1:
        return AsyncVectorEnv(task, num_envs, training=False, config=config, num_workers=num_workers)
    return make(task, num_envs, training=False, config=config, num_workers=num_workers)


def measure(env: VectorEnv, steps: int) -> float:
    """Milliseconds per step of all envs; they are reset before, and each again when it is done."""
    rng = np.random.default_rng(0)
    space = env.action_space
    began = time.perf_counter()
    for number in range(steps):
        if isinstance(space, spaces.Discrete):
            actions = rng.integers(space.n, size=env.num_envs)
        else:
            actions = rng.uniform(-1, 1, (env.num_envs, *space.shape)).astype(np.float32)
        done = np.flatnonzero(env.step(actions).done).tolist()
        if done:
            env.reset(done, [number] * len(done))
    return (time.perf_counter() - began) / steps * 1e3


def main() -> None:
    """Prints one line per task."""
    parser = Parser(__doc__)
    parser.add_argument("tasks", nargs="*", default=TASKS, metavar="TASK", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--num-envs", type=whole(2), default=10, help="envs (default: %(default)s)")
    parser.add_argument("--steps", type=whole(1), default=100, help="steps that are timed (default: %(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=3, help="turns of each of the two (default: %(default)s)")
    options = parser.parse_args()
    workers = min(options.num_envs, num_cores())
    configs = {task: checked(task).environment for task in options.tasks}
    if workers < 2:
        raise InputError("cores: 1 leaves nothing to compare; allowed: 2 or more")
    print(f"{options.num_envs} envs, {num_cores()} cores")
    for task, config in configs.items():
        step_ms: dict[int, list[float]] = {1: [], workers: []}
        setup_s: dict[int, list[float]] = {1: [], workers: []}
        for _ in range(options.repeats):
            for num_workers in step_ms:
                began = time.perf_counter()
                env = make_envs(task, options.num_envs, config, num_workers)
                assert isinstance(env, AsyncVectorEnv) == (num_workers > 1)
                env.reset(range(options.num_envs), range(options.num_envs))
                opened = time.perf_counter() - began
                step_ms[num_workers].append(measure(env, options.steps))
                began = time.perf_counter()
                env.close()
                setup_s[num_workers].append(opened + time.perf_counter() - began)
        ms = {count: statistics.median(values) for count, values in step_ms.items()}
        seconds = {count: statistics.median(values) for count, values in setup_s.items()}
        print(
            f"{task:<22} one process {ms[1]:8.2f} ms, made in {seconds[1]:.2f} s;  "
            f"{workers} processes {ms[workers]:8.2f} ms, made in {seconds[workers]:.2f} s;  "
            f"steps {ms[1] / ms[workers]:.2f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
