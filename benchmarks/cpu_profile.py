"""Profiles training on the CPU: time by part of an agent step and by operation of an update.

python benchmarks/cpu_profile.py [TASK …] [--method playvirtual] [--steps 400]
One thread; the replay buffer is filled by random play. Products are matrix products and convolutions; the rest is many
small operations, whose cost is mostly the overhead of their calls. A part whose method does not exist or is never
called is an error, so that the list of parts follows the code.
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

from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.config.schema import Config
from playvirtual.kernels import adam
from playvirtual.training.trainer import Trainer

FILL = 400  # agent steps of random play
WARM = 40  # agent steps with learning before measuring
FEWEST = 40  # agent steps in which every preset makes updates of every kind
UPDATES = 30
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mkldnn_convolution", "aten::convolution_backward")
SOMETIMES = ("reset", "end_episode")  # only at ends of episodes and time limits, which few steps may not have

Part = tuple[Any, str, str]  # owner, method, name; a name with more leading spaces is inside the part before it


def warmed(config: Config) -> Trainer:
    """A trainer with no updates overdue, so that its next steps are those of a run."""
    trainer = Trainer(config)
    trainer.train(FILL + WARM)
    return trainer


def parts_of(trainer: Trainer) -> Iterator[Part]:
    """What is timed, outer parts before inner ones."""
    yield trainer, "ask_policy", "interact"
    yield trainer, "add_obs", "interact"
    yield trainer.env, "step", "interact"
    yield trainer, "add_transition", "interact"
    yield trainer.agent, "act", "  act"
    yield trainer.env.vector_env, "step", "  env: step"
    yield trainer.env.vector_env, "reset", "  env: reset"
    for method in ("add_obs", "add_transition", "end_episode"):
        yield trainer.replay, method, "  replay: add"
    yield trainer.sampler, "on_append", "  replay: on_append"
    yield trainer, "make_due_updates", "learn"
    yield trainer.sampler, "sample", "  replay: sample"
    yield trainer.sampler, "update_priorities", "  replay: priorities"
    yield trainer.agent, "update", "  agent: update"
    yield trainer.agent, "draw", "    random numbers"
    yield torch.Tensor, "backward", "    backward"
    yield from _rainbow(trainer.agent) if isinstance(trainer.agent, Rainbow) else _sac(trainer.agent)


def _rainbow(agent: Rainbow) -> Iterator[Part]:
    yield agent.head, "resample", "    random numbers"
    yield agent, "_mean_loss", "    losses"
    yield adam, "clip_grad_norm_by_group", "    gradient norms"
    yield agent.optimizer, "step", "    optimizer"
    yield agent.clipped_adam, "copy_parameters", "    target networks"


def _sac(agent: Sac) -> Iterator[Part]:
    yield agent, "_mean_critic_loss", "    losses"
    yield agent, "_mean_actor_loss", "    losses"
    yield adam, "clip_grad_norm_by_group", "    gradient norms"
    if "encoder" in agent.optimizers:
        yield torch.nn.utils, "clip_grad_norm_", "    gradient norms"
    if agent.objective is not None:
        yield agent, "_mean_auxiliary_loss", "    losses"
    for optimizer in agent.optimizers.values():
        yield optimizer, "step", "    optimizer"
    yield agent, "update_critic_target", "    target networks"
    yield agent, "update_momentum", "    target networks"


def parts(trainer: Trainer, steps: int) -> None:
    """Prints milliseconds per agent step and shares of the whole step, by part."""
    with Stopwatch() as watch:
        for owner, method, part in parts_of(trainer):
            watch.watch(owner, method, part)
        began = time.perf_counter()
        trainer.train(steps)
        whole_step = (time.perf_counter() - began) / steps
    if never := [name for name, calls in watch.calls.items() if not calls and not name.endswith(SOMETIMES)]:
        raise RuntimeError(f"never called: {', '.join(never)}; the parts listed in this script must follow the code")
    print(f"one agent step: {whole_step * 1e3:.2f} ms ({1 / whole_step:.0f} steps/s)")
    for part, spent in watch.seconds.items():
        print(f"  {part:<24} {spent / steps * 1e3:7.3f} ms {spent / steps / whole_step:6.1%}")


def operations(trainer: Trainer) -> None:
    """Prints the operations of an update that take the most time, and the share of the products."""
    with FlopCounterMode(display=False) as flops:
        trainer.learner.update()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(UPDATES):
            trainer.learner.update()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    products = sum(row.self_cpu_time_total for row in rows if row.key in PRODUCTS)
    count = sum(row.count for row in rows if row.key.startswith("aten::")) / UPDATES
    print(
        f"one update under the profiler: {total / UPDATES / 1e3:.1f} ms, "
        f"{count:.0f} operations (nested ones too), {flops.get_total_flops() / 1e9:.3f} GFLOP; "
        f"products {products / total:.0%}, so without the rest {total / products:.1f} times as fast"
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
    fixed = {"method": options.method, "device": "cpu", "threads": 1, "learning_starts": FILL}
    configs = [checked(task, **fixed) for task in options.tasks]
    for config in configs:
        print(f"{config.task} {config.method}")
        # One trainer each: `operations` makes updates that are not due yet, after which the loop would make fewer.
        with closing(warmed(config)) as trainer:
            operations(trainer)
        with closing(warmed(config)) as trainer:
            parts(trainer, options.steps)


if __name__ == "__main__":
    run(main)
