"""Where the time of one agent step goes, in microseconds: choosing the action, the game, the replay, the priorities.

    python benchmarks/acting_speed.py [--steps 2000] [--device auto] [--learn] [TASK …]

Every task is measured in this one process with eager and, on a GPU, with captured acting. `act` includes the wait
for the device; with --learn the updates of the task's settings come between two steps, and `act` waits for those, too.
"""

from __future__ import annotations

import time

import torch
from script import DEVICES, Parser, checked, run, whole
from stopwatch import Stopwatch, synchronize

from playvirtual.config import Config
from playvirtual.training.acting import Answer
from playvirtual.training.devices import resolve
from playvirtual.training.loop import Training

FILL = 300  # agent steps of random play
WARM = 50  # steps before measuring: library start-up, captures


def measure(config: Config, steps: int, learn: bool) -> dict[str, float]:
    """Mean microseconds per step of every part, of the whole `interact` and, if it learns, of the updates beside it."""
    training = Training(config)
    while training.step < FILL:
        training.interact()
    choose = training._choose

    def choose_and_wait() -> Answer:
        action = choose()()
        return lambda: action

    training._choose = choose_and_wait  # type: ignore[method-assign]
    watch = Stopwatch()
    watch.watch(training, "_choose", "act")
    watch.watch(training.env, "step", "env step")
    watch.watch(training.replay, "begin", "replay add")
    watch.watch(training.replay, "complete", "replay add")
    watch.watch(training.source, "follow", "follow")
    whole_step, update = 0.0, 0.0
    for step in range(WARM + steps):
        if step == WARM:
            synchronize()
            watch.clear()
            whole_step = update = 0.0
        began = time.perf_counter()
        training.interact()
        between = time.perf_counter()
        if learn:
            training.learn()
        whole_step += between - began
        update += time.perf_counter() - between
    synchronize()
    training.close()
    rest = whole_step - sum(watch.seconds.values())
    found = {**watch.seconds, "rest": rest, "interact": whole_step} | ({"launch of updates": update} if learn else {})
    return {part: seconds / steps * 1e6 for part, seconds in found.items()}


def main() -> None:
    """Prints one line per task and way to act."""
    parser = Parser(__doc__)
    tasks = ["atari/pong", "toy/catch"]
    parser.add_argument("tasks", nargs="*", default=tasks, metavar="TASK", help=f"default: {' '.join(tasks)}")
    parser.add_argument("--steps", type=whole(1), default=2_000, help="agent steps timed (default: %(default)s)")
    parser.add_argument("--device", default="auto", help=f"{DEVICES} (default: auto)")
    parser.add_argument(
        "--learn", action="store_true", help="make as many updates per step as the task's settings say, as in training"
    )
    options = parser.parse_args()
    fixed = {"device": options.device, "min_size": FILL, "steps": 2 * (FILL + WARM + options.steps)}
    configs = [[checked(task, capture=capture, **fixed) for capture in ("off", "graph")] for task in options.tasks]
    device = resolve(options.device)
    gpu = device.type == "cuda"
    print(f"{torch.cuda.get_device_name(device) if gpu else 'CPU'}, torch {torch.__version__}; microseconds per step")
    for config in (config for both in configs for config in (both if gpu else both[:1])):
        found = measure(config, options.steps, options.learn)
        shown = "  ".join(f"{part} {value:.1f}" for part, value in found.items())
        print(f"{config.task:<12} {config.capture:<5}  {shown}", flush=True)


if __name__ == "__main__":
    run(main)
