"""Whether lanes in processes of their own pay: the same episodes played both ways, in turns, in one run.

python benchmarks/evaluation_lanes.py [TASK …] [--lanes 10] [--steps 100] [--repeats 3]
Prints seconds to make, first reset and close the lanes, milliseconds per step of all lanes, medians, and the steps'
ratio. Atari's lanes in one process have threads.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from gymnasium import spaces
from script import Parser, checked, run, whole

from playvirtual.config import EnvironmentConfig
from playvirtual.cores import cores
from playvirtual.envs import Environment
from playvirtual.envs.parallel import ParallelLanes
from playvirtual.envs.registry import make
from playvirtual.errors import InputError

TASKS = ["dmc/cartpole-swingup", "dmc/cheetah-run", "minatar/breakout", "toy/catch"]


def open_lanes(task: str, lanes: int, config: EnvironmentConfig, workers: int) -> Environment:
    """Lanes in `workers` processes, also of a task that would stay in one."""
    if workers > 1:
        return ParallelLanes(task, lanes, training=False, config=config, workers=workers)
    return make(task, lanes, training=False, config=config, workers=workers)


def measure(environment: Environment, steps: int) -> float:
    """Milliseconds per step of all lanes, which have begun; one that ends begins anew."""
    rng = np.random.default_rng(0)
    space = environment.action_space
    began = time.perf_counter()
    for number in range(steps):
        if isinstance(space, spaces.Discrete):
            actions = rng.integers(space.n, size=environment.lanes)
        else:
            actions = rng.uniform(-1, 1, (environment.lanes, *space.shape)).astype(np.float32)
        over = np.flatnonzero(environment.step(actions).over).tolist()
        if over:
            environment.reset(over, [number] * len(over))
    return (time.perf_counter() - began) / steps * 1e3


def main() -> None:
    """Prints one line per task."""
    parser = Parser(__doc__)
    parser.add_argument("tasks", nargs="*", default=TASKS, metavar="TASK", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--lanes", type=whole(2), default=10, help="games at the same time (default: %(default)s)")
    parser.add_argument("--steps", type=whole(1), default=100, help="steps of all lanes timed (default: %(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=3, help="turns of either way (default: %(default)s)")
    options = parser.parse_args()
    workers = min(options.lanes, cores())
    configs = {task: checked(task).environment for task in options.tasks}
    if workers < 2:
        raise InputError("cores: 1 leaves nothing to compare; allowed: 2 or more")
    print(f"{options.lanes} lanes, {cores()} cores")
    for task, config in configs.items():
        apart: dict[int, list[float]] = {1: [], workers: []}
        made: dict[int, list[float]] = {1: [], workers: []}
        for _ in range(options.repeats):
            for share in apart:
                began = time.perf_counter()
                environment = open_lanes(task, options.lanes, config, share)
                assert isinstance(environment, ParallelLanes) == (share > 1)
                environment.reset(range(options.lanes), range(options.lanes))
                opened = time.perf_counter() - began
                apart[share].append(measure(environment, options.steps))
                began = time.perf_counter()
                environment.close()
                made[share].append(opened + time.perf_counter() - began)
        ms = {share: statistics.median(values) for share, values in apart.items()}
        seconds = {share: statistics.median(values) for share, values in made.items()}
        print(
            f"{task:<22} one process {ms[1]:8.2f} ms, made in {seconds[1]:.2f} s;  "
            f"{workers} processes {ms[workers]:8.2f} ms, made in {seconds[workers]:.2f} s;  "
            f"steps {ms[1] / ms[workers]:.2f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
