"""Where the time of training goes on the CPU: by part of an agent step, by operation of an update.

python benchmarks/cpu_profile.py [TASK …] [--method playvirtual] [--steps 400]
One thread; the replay is filled by real play. Products are matrix products and convolutions: what the arithmetic needs;
the rest is many small operations, whose cost is that of being called.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from playvirtual.presets import build
from playvirtual.training.loop import Training

FILL = 400  # agent steps of random play
WARM = 40  # agent steps with learning before measuring
UPDATES = 30
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mkldnn_convolution", "aten::convolution_backward")


class Stopwatch:
    """Seconds spent inside methods, by name; an inner part counts towards the outer one too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str, part: str) -> None:
        """From now on counts the calls of `owner.method`, if there is such a thing."""
        called = getattr(owner, method, None)
        if called is None:
            return

        def timed(*arguments: Any, **options: Any) -> Any:
            before = time.perf_counter()
            try:
                return called(*arguments, **options)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - before

        setattr(owner, method, timed)


def parts(training: Training, steps: int) -> None:
    """Prints milliseconds per agent step and their shares, of the whole step and of what is inside it."""
    watch = Stopwatch()
    agent: Any = training.agent
    for owner, method, part in [
        (training, "interact", "interact"),
        (agent, "act", "  act"),
        (training.env, "step", "  environment: step"),
        (training.env, "reset", "  environment: reset"),
        (training.replay, "add", "  replay: add"),
        (training, "learn", "learn"),
        (training.source, "sample", "  replay: sample"),
        (agent, "update", "  agent: update"),
        (agent, "_objective", "    losses"),
        (agent, "draw", "    random numbers"),
        (torch.Tensor, "backward", "    backward"),
        (torch.nn.utils, "clip_grad_norm_", "    gradient norms"),
        (getattr(agent, "optimizer", None), "step", "    optimiser"),
        (agent, "update_target", "    target networks"),
    ]:
        watch.watch(owner, method, part)
    began = time.perf_counter()
    for _ in range(steps):
        training.interact()
        training.learn()
    whole = time.perf_counter() - began
    print(f"one agent step: {whole / steps * 1e3:.2f} ms ({steps / whole:.0f} steps/s)")
    order = ["interact", "learn"]
    for outer in order:
        print(f"  {outer:<24} {watch.seconds[outer] / steps * 1e3:7.3f} ms {watch.seconds[outer] / whole:6.1%}")
        inside = ("  act", "  env", "  replay: add") if outer == "interact" else ("  replay: sample", "  agent", "    ")
        for part, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1]):
            if part.startswith(inside):
                print(f"  {part:<24} {seconds / steps * 1e3:7.3f} ms {seconds / whole:6.1%}")


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", default=["minatar/breakout", "toy/catch"], metavar="TASK")
    parser.add_argument("--method", default="playvirtual")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    for task in options.tasks:
        print(f"{task} {options.method}")
        training = Training(build(task, method=options.method, device="cpu", threads=1, min_size=FILL))
        for _ in range(FILL + WARM):
            training.interact()
            training.learn()
        operations(training)
        parts(training, options.steps)  # last, because it leaves its stopwatches behind
        training.close()


if __name__ == "__main__":
    main()
