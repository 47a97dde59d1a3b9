"""Where the time of training goes on the CPU: by part of an agent step, by operation of an update.

python benchmarks/cpu_profile.py [TASK …] [--method playvirtual] [--steps 400]
One thread; the replay is filled by real play. Products are matrix products and convolutions: what the arithmetic needs;
the rest is many small operations, whose cost is that of being called. A part whose method is gone, or is there and not
called any more, is an error: the list of parts must follow the code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from script import Parser, checked, run, whole
from stopwatch import Stopwatch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from playvirtual.agents import descent
from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.config import Config
from playvirtual.training.loop import Training

FILL = 400  # agent steps of random play
WARM = 40  # agent steps with learning before measuring
FEWEST = 40  # agent steps in which every preset comes to its updates of every kind
UPDATES = 30
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mkldnn_convolution", "aten::convolution_backward")
SOMETIMES = ("reset", "close")  # not within every so many steps: ends of episodes, time limits

Part = tuple[Any, str, str]  # owner, method, name; the spaces before a name say what it is inside


def warmed(config: Config) -> Training:
    """A training that owes no update: its next steps are like those of a run."""
    training = Training(config)
    for _ in range(FILL + WARM):
        training.interact()
        training.learn()
    return training


def parts_of(training: Training) -> Iterator[Part]:
    """What is timed, the outer parts before those inside."""
    yield training, "interact", "interact"
    yield training.agent, "act", "  act"
    yield training.env, "step", "  environment: step"
    yield training.env, "reset", "  environment: reset"
    for method in ("begin", "complete", "close"):
        yield training.replay, method, "  replay: store"
    yield training.source, "follow", "  replay: follow"
    yield training, "learn", "learn"
    yield training.source, "sample", "  replay: sample"
    yield training.source, "learned", "  replay: priorities"
    yield training.agent, "update", "  agent: update"
    yield training.agent, "draw", "    random numbers"
    yield torch.Tensor, "backward", "    backward"
    yield from _rainbow(training.agent) if isinstance(training.agent, Rainbow) else _sac(training.agent)


def _rainbow(agent: Rainbow) -> Iterator[Part]:
    yield agent.head, "resample", "    random numbers"
    yield agent, "_objective", "    losses"
    yield descent, "clip_by_part", "    gradient norms"
    yield agent.optimizer, "step", "    optimiser"
    yield agent, "update_target", "    target networks"


def _sac(agent: Sac) -> Iterator[Part]:
    yield agent, "_critic_losses", "    losses"
    yield agent, "_actor_losses", "    losses"
    yield descent, "clip_by_part", "    gradient norms"
    if "encoder" in agent.optimizers:
        yield torch.nn.utils, "clip_grad_norm_", "    gradient norms"
    if agent.auxiliary is not None:
        yield agent, "_auxiliary_losses", "    losses"
    for optimizer in agent.optimizers.values():
        yield optimizer, "step", "    optimiser"
    yield agent, "update_targets", "    target networks"


def parts(training: Training, steps: int) -> None:
    """Prints milliseconds per agent step and their shares, of the whole step and of what is inside it."""
    with Stopwatch() as watch:
        for owner, method, part in parts_of(training):
            watch.watch(owner, method, part)
        began = time.perf_counter()
        for _ in range(steps):
            training.interact()
            training.learn()
        whole_step = (time.perf_counter() - began) / steps
    if never := [name for name, calls in watch.calls.items() if not calls and not name.endswith(SOMETIMES)]:
        raise RuntimeError(f"never called: {', '.join(never)}; the parts listed in this script must follow the code")
    print(f"one agent step: {whole_step * 1e3:.2f} ms ({1 / whole_step:.0f} steps/s)")
    for part, spent in watch.seconds.items():
        print(f"  {part:<24} {spent / steps * 1e3:7.3f} ms {spent / steps / whole_step:6.1%}")


def operations(training: Training) -> None:
    """Prints the operations of an update that take the most time, and what the products alone take."""
    with FlopCounterMode(display=False) as flops:
        training.learner.update()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(UPDATES):
            training.learner.update()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    products = sum(row.self_cpu_time_total for row in rows if row.key in PRODUCTS)
    count = sum(row.count for row in rows if row.key.startswith("aten::")) / UPDATES
    print(
        f"one update under the profiler: {total / UPDATES / 1e3:.1f} ms, "
        f"{count:.0f} operations (those inside others too), {flops.get_total_flops() / 1e9:.3f} GFLOP; "
        f"products {products / total:.0%}, so without all the rest {total / products:.1f} times as fast"
    )
    for row in rows[:12]:
        print(f"  {row.key:<34} {row.self_cpu_time_total / total:6.1%}  {row.count / UPDATES:7.1f} calls per update")


def main() -> None:
    """Profiles one task after the other."""
    parser = Parser(__doc__)
    tasks = ["minatar/breakout", "toy/catch"]
    parser.add_argument("tasks", nargs="*", default=tasks, metavar="TASK", help=f"default: {' '.join(tasks)}")
    parser.add_argument("--method", default="playvirtual", help="one of the methods of `playvirtual list methods`")
    parser.add_argument("--steps", type=whole(FEWEST), default=400, help="agent steps timed (default: %(default)s)")
    options = parser.parse_args()
    fixed = {"method": options.method, "device": "cpu", "threads": 1, "min_size": FILL}
    configs = [checked(task, **fixed) for task in options.tasks]
    for config in configs:
        print(f"{config.task} {config.method}")
        # One training each: the updates made for `operations` are more than `learn` owes, which would then wait.
        with closing(warmed(config)) as training:
            operations(training)
        with closing(warmed(config)) as training:
            parts(training, options.steps)


if __name__ == "__main__":
    run(main)
