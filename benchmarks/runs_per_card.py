"""Measures N trainings side by side on one GPU, with and without MPS.

python benchmarks/runs_per_card.py atari/pong 1 4 8 [--method spr] [--seconds 8] [--mps both] [--out FILE.json]
The processes of the largest N are started once (the first of them alone, so that the others find its compiled code);
each builds its trainer, fills its replay buffer, compiles, captures its CUDA graphs, and waits. For every N, the
smallest first, the first N processes then run the training loop for the same seconds while the others sleep. Without
a GPU the runs share the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from script import Parser, checked, new_file, one_of, run, seconds, whole
from stopwatch import synchronize

from playvirtual.config.build import build
from playvirtual.study.engines import mps
from playvirtual.study.engines.local import LocalEngine
from playvirtual.training.trainer import Trainer

EXIT_TIMEOUT = 30.0  # seconds for a process to end


def work(words: Sequence[str]) -> None:
    """One training: reports when it is ready; for each line of stdin runs for so many seconds and reports steps/s."""
    settings: dict[str, Any] = json.loads(words[0])
    trainer = Trainer(build(**settings["config"]))
    trainer.train(trainer.config.replay.learning_starts + settings["warm"])
    synchronize()
    # The parent stays off the card, where a context of its own would take part in the measurement.
    card = torch.cuda.get_device_name() if trainer.agent.device.type == "cuda" else "the CPU"
    say({"card": card, "frames_per_step": trainer.config.frames_per_step, "steps": trainer.config.steps})
    for line in sys.stdin:
        first, start = trainer.step, time.monotonic()
        while time.monotonic() < start + float(line):
            trainer.train(1)
        synchronize()
        rate = (trainer.step - first) / (time.monotonic() - start)
        say({"rate": rate, "updates": trainer.learner.updates, **memory()})
    trainer.close()


def say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def memory() -> dict[str, float]:
    """GiB in use on the whole card, and the peak of this process's tensors."""
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"card_gib": (total - free) / 2**30, "tensors_gib": torch.cuda.max_memory_reserved() / 2**30}


class Workers:
    """As many training processes as the largest N, ready to run."""

    def __init__(self, size: int, settings: dict[str, Any], environment: dict[str, str], *, compiled: bool) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        try:
            self.ready: list[dict[str, Any]] = []
            for last in (size,) if compiled else (1, size):  # the first alone fills the compiler's cache
                for seed in range(len(self.processes), last):
                    config = {**settings["config"], "seed": seed + 1}
                    self.processes.append(start({**settings, "config": config}, environment))
                self.ready += [answer(process) for process in self.processes[len(self.ready) :]]
        except BaseException:
            self.close()
            raise

    def run(self, runs: int, length: float) -> list[dict[str, Any]]:
        """The reports of the first `runs` processes after running side by side for `length` seconds."""
        for process in self.processes[:runs]:
            assert process.stdin is not None
            process.stdin.write(f"{length}\n")
            process.stdin.flush()
        return [answer(process) for process in self.processes[:runs]]

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start(settings: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--work", json.dumps(settings)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment})


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next report of a process; anything else that it prints goes to stderr."""
    assert process.stdout is not None
    for line in process.stdout:
        try:
            return dict(json.loads(line))
        except ValueError:
            print(line, end="", file=sys.stderr)
    raise SystemExit(f"a training ended with exit code {process.wait()}")


def measure(
    options: argparse.Namespace,
    settings: dict[str, Any],
    environment: dict[str, str],
    *,
    under_mps: bool | None,
    compiled: bool,
) -> list[dict[str, Any]]:
    """One row per N; `under_mps` is None without a card, `compiled` says that the compiler's cache is filled."""
    began = time.monotonic()
    workers = Workers(options.runs[-1], settings, environment, compiled=compiled)
    rows: list[dict[str, Any]] = []
    try:
        label = "" if under_mps is None else "MPS: " if under_mps else "without MPS: "
        waited = time.monotonic() - began
        print(f"{label}{len(workers.processes)} on {workers.ready[0]['card']}, ready after {waited:.0f} s", flush=True)
        agent_steps = workers.ready[0]["steps"] / workers.ready[0]["frames_per_step"]
        for runs in options.runs:
            reports = workers.run(runs, options.seconds)
            rates = [report["rate"] for report in reports]
            one_run = agent_steps / statistics.mean(rates) + options.evaluation_seconds
            row = {
                "mps": under_mps,
                "runs": runs,
                "steps_per_second": statistics.mean(rates),
                "slowest": min(rates),
                "sum": sum(rates),
                "minutes_per_run": one_run / 60,
                "runs_per_card_hour": runs * 3600 / one_run,
                **{name: max(report[name] for report in reports) for name in reports[0] if name.endswith("_gib")},
            }
            rows.append(row)
            print(f"  {line(row, rows[0])}", flush=True)
        if "card_gib" in rows[-1]:
            print(
                f"  on the card with all processes ({len(workers.processes)}): {rows[-1]['card_gib']:.1f} GiB",
                flush=True,
            )
    finally:
        workers.close()
    return rows


def line(row: dict[str, Any], first: dict[str, Any]) -> str:
    """A row as text, with its gain over one run if the first row is of one run."""
    gain = f" ({row['sum'] / first['sum']:.2f} times one run's)" if first["runs"] == 1 else ""
    hour = "hour" if row["mps"] is None else "card-hour"
    tensors = f", tensors {row['tensors_gib']:.1f} GiB per run" if "tensors_gib" in row else ""
    runs = f"{row['runs']:3d} {'run: ' if row['runs'] == 1 else 'runs:'}"
    return (
        f"{runs} {row['steps_per_second']:8.1f} agent steps/s each "
        f"(slowest {row['slowest']:.1f}), {row['sum']:8.1f} in sum{gain}, {row['minutes_per_run']:6.1f} min per run, "
        f"{row['runs_per_card_hour']:6.2f} runs per {hour}{tensors}"
    )


def arguments() -> argparse.Namespace:
    """The command line's arguments, N in ascending order."""
    parser = Parser(__doc__)
    parser.add_argument("task", metavar="TASK", help="for example atari/pong; see `playvirtual list tasks`")
    parser.add_argument("runs", type=whole(1), nargs="+", metavar="N", help="runs side by side; 1 to compare with")
    parser.add_argument("--method", default="playvirtual", help="see `playvirtual list methods` (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=seconds(), default=8.0, help="of measuring, for each N (default: %(default)s)"
    )
    parser.add_argument(
        "--mps", type=one_of("both", "on", "off"), default="both", help="both, on or off (default: %(default)s)"
    )
    parser.add_argument(
        "--device", type=one_of("auto", "cpu", "cuda"), default="auto", help="auto, cpu or cuda (default: %(default)s)"
    )
    parser.add_argument("--compile", help="off, cudagraph or full (default: the preset's)")
    parser.add_argument("--precision", help="fp32, tf32 or bf16 (default: the preset's)")
    parser.add_argument(
        "--fill", type=whole(1), default=400, help="agent steps of random play before learning (default: %(default)s)"
    )
    parser.add_argument(
        "--warm", type=whole(0), default=40, help="agent steps with learning before measuring (default: %(default)s)"
    )
    parser.add_argument(
        "--evaluation-seconds",
        type=seconds(zero=True),
        default=60.0,
        help="added to each run; stated, not measured (default: %(default)s)",
    )
    parser.add_argument("--out", type=new_file, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args()
    options.runs.sort()
    return options


def main() -> None:
    """Measures every N, on a card with and without MPS."""
    options = arguments()
    config = {"task": options.task, "method": options.method, "device": options.device, "learning_starts": options.fill}
    config |= {name: value for name in ("compile", "precision") if (value := getattr(options, name))}
    checked(**config)
    engine = LocalEngine(options.runs[-1], device=options.device, mps="off")
    cards = engine.gpus[:1]
    if cards and options.mps == "on":
        mps.check("on")
    threads = {"OMP_NUM_THREADS": str(engine.threads), "MKL_NUM_THREADS": str(engine.threads)}
    each = f"{engine.threads} CPU thread{'s' * (engine.threads > 1)} each"
    print(f"{options.task} {options.method}, {each}, torch {torch.__version__}")
    print(f"a run: the preset's steps at the rate measured here, and {options.evaluation_seconds:.0f} s of evaluation")
    settings = {"config": config, "warm": options.warm}
    rows = []
    if not cards:
        print("no GPU: MPS does not apply", flush=True)
        rows += measure(options, settings, threads, under_mps=None, compiled=False)
    elif mps.runs_already():
        print("an MPS daemon runs already: all rows are under it", flush=True)
        environment = {**threads, "CUDA_VISIBLE_DEVICES": cards[0]}
        rows += measure(options, settings, environment, under_mps=True, compiled=False)
    else:
        if options.mps != "on":
            environment = {**threads, "CUDA_VISIBLE_DEVICES": cards[0]}
            rows += measure(options, settings, environment, under_mps=False, compiled=False)
        if options.mps != "off":
            rows += with_daemon(options, settings, threads, cards, compiled=bool(rows))
    if options.out:
        content = {"torch": torch.__version__, **vars(options), "out": str(options.out), "rows": rows}
        options.out.write_text(json.dumps(content, indent=1))


def with_daemon(
    options: argparse.Namespace,
    settings: dict[str, Any],
    threads: dict[str, str],
    cards: Sequence[str],
    *,
    compiled: bool,
) -> list[dict[str, Any]]:
    """The rows under an MPS daemon of our own; none, with a message, where none can be started."""
    daemon = mps.start("on" if options.mps == "on" else "auto", cards)
    if daemon is None:
        print("MPS: no daemon could be started")
        return []
    try:
        environment = {**threads, "CUDA_VISIBLE_DEVICES": daemon.visible(0), **daemon.environment}
        return measure(options, settings, environment, under_mps=True, compiled=compiled)
    finally:
        daemon.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
    else:
        run(main)
