"""Times the parts of one agent step in microseconds: policy, env step, replay buffer, priorities.

    python benchmarks/acting_speed.py [--steps 2000] [--device auto] [--learn] [TASK …]

Every task is measured in one process with an eager policy and, on a GPU, with the policy as a CUDA graph. `act`
includes the wait for the device; with --learn the task's updates are made between two steps and `act` waits for them.
"""

from __future__ import annotations

import time

import torch
from script import DEVICES, Parser, checked, run, whole
from stopwatch import Stopwatch, synchronize

from playvirtual.config.schema import Config
from playvirtual.device import resolve_device
from playvirtual.training.policy import PendingActions, ReadyActions
from playvirtual.training.trainer import Trainer

FILL = 300  # agent steps of random play
WARM = 50  # steps before measuring: library start-up, CUDA graph captures


def measure(config: Config, steps: int) -> dict[str, float]:
    """Mean microseconds per step: of every part, of the rest and of the whole step."""
    trainer = Trainer(config)
    trainer.train(FILL)
    ask = trainer.ask_policy

    def ask_and_wait() -> PendingActions:
        return ReadyActions(ask().get())

    trainer.ask_policy = ask_and_wait  # type: ignore[method-assign]
    watch = Stopwatch()
    watch.watch(trainer, "ask_policy", "act")
    watch.watch(trainer.env.vector_env, "step", "env step")
    watch.watch(trainer.replay, "add_obs", "replay add")
    watch.watch(trainer.replay, "add_transition", "replay add")
    watch.watch(trainer.sampler, "on_append", "on_append")
    watch.watch(trainer, "make_due_updates", "launch updates")
    trainer.train(WARM)
    synchronize()
    watch.clear()
    began = time.perf_counter()
    trainer.train(steps)
    whole_step = time.perf_counter() - began
    synchronize()
    trainer.close()
    found = {**watch.seconds, "rest": whole_step - sum(watch.seconds.values()), "whole step": whole_step}
    return {part: seconds / steps * 1e6 for part, seconds in found.items()}


def main() -> None:
    """Prints one line per task and compile mode."""
    parser = Parser(__doc__)
    tasks = ["atari/pong", "toy/catch"]
    parser.add_argument("tasks", nargs="*", default=tasks, metavar="TASK", help=f"default: {' '.join(tasks)}")
    parser.add_argument("--steps", type=whole(1), default=2_000, help="agent steps timed (default: %(default)s)")
    parser.add_argument("--device", default="auto", help=f"{DEVICES} (default: auto)")
    parser.add_argument(
        "--learn", action="store_true", help="make as many updates per step as the task's settings say, as in training"
    )
    options = parser.parse_args()
    fixed = {"device": options.device, "learning_starts": FILL, "steps": 2 * (FILL + WARM + options.steps)}
    fixed |= {} if options.learn else {"updates_per_step": 0}
    configs = [[checked(task, compile=mode, **fixed) for mode in ("off", "cudagraph")] for task in options.tasks]
    device = resolve_device(options.device)
    gpu = device.type == "cuda"
    print(f"{torch.cuda.get_device_name(device) if gpu else 'CPU'}, torch {torch.__version__}; microseconds per step")
    for config in (config for both in configs for config in (both if gpu else both[:1])):
        found = measure(config, options.steps)
        shown = "  ".join(f"{part} {value:.1f}" for part, value in found.items())
        print(f"{config.task:<12} {config.compile:<9}  {shown}", flush=True)


if __name__ == "__main__":
    run(main)
