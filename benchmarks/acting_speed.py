"""Where the time of one agent step goes, in microseconds: choosing the action, the game, the replay, the priorities.

    python benchmarks/acting_speed.py [--steps 2000] [--device auto] [--learn] [atari/pong toy/catch …]

Every task is measured in this one process with eager and, on a GPU, with captured acting. `act` includes the wait
for the device; with --learn there is an update between two steps, and `act` waits for that one, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from playvirtual.presets import build
from playvirtual.training.acting import Answer
from playvirtual.training.loop import Training

WARM = 50  # steps before measuring: library start-up, captures
PARTS = ("act", "env step", "replay add", "follow")


class Stopwatch:
    """Adds up the time inside the functions that it was put around."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def around(self, owner: Any, method: str, part: str) -> None:
        """Replaces a method of one object by itself with a clock."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*values: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = inner(*values, **named)
            self.seconds[part] += time.perf_counter() - began
            return result

        setattr(owner, method, timed)


def measure(task: str, capture: str, device: str, steps: int, learn: bool) -> dict[str, float]:
    """Mean microseconds per step of every part, of the whole `interact`, and of the update beside it."""
    fill = 300
    config = build(task, device=device, capture=capture, min_size=fill, steps=2 * (fill + WARM + steps))
    training = Training(config)
    while training.step < fill:
        training.interact()
    watch, choose = Stopwatch(), training._choose

    def choose_and_wait() -> Answer:
        action = choose()()
        return lambda: action

    training._choose = choose_and_wait  # type: ignore[method-assign]
    watch.around(training, "_choose", "act")
    watch.around(training.env, "step", "env step")
    watch.around(training.replay, "begin", "replay add")
    watch.around(training.replay, "complete", "replay add")
    watch.around(training.source, "follow", "follow")
    whole, update = 0.0, 0.0
    for step in range(WARM + steps):
        if step == WARM:
            synchronize()
            watch.seconds = dict.fromkeys(PARTS, 0.0)
            whole = update = 0.0
        began = time.perf_counter()
        training.interact()
        between = time.perf_counter()
        if learn:
            training.learn()
        whole += between - began
        update += time.perf_counter() - between
    synchronize()
    training.close()
    rest = whole - sum(watch.seconds.values())
    found = {**watch.seconds, "rest": rest, "interact": whole, "launch of update": update}
    return {part: seconds / steps * 1e6 for part, seconds in found.items()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["atari/pong", "toy/catch"])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--learn", action="store_true", help="one update per step, as in training")
    options = parser.parse_args()
    gpu = torch.cuda.is_available() and options.device != "cpu"
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}, torch {torch.__version__}; microseconds per step")
    for task in options.tasks:
        for capture in ("off", "graph") if gpu else ("off",):
            found = measure(task, capture, options.device, options.steps, options.learn)
            shown = "  ".join(f"{part} {value:.1f}" for part, value in found.items())
            print(f"{task:<12} {capture:<5}  {shown}", flush=True)


if __name__ == "__main__":
    main()
