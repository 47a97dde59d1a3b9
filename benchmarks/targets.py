"""Measures the targets of docs/performance.md on this machine, one after the other, alone on the device.

python benchmarks/targets.py --out targets.json [--only PART ...] [--toys]
Parts, each in processes of its own:
  start     Pong's first update with empty caches and once more with full ones, and its update (playvirtual bench)
  alien     Alien's update (playvirtual bench)
  cartpole  updates of DMControl per second (playvirtual bench)
  rollouts  rollouts of Pong's and Alien's size alone (rollout_speed.py; a Hopper GPU)
  run       the whole run of Pong with empty caches, from the command to its end (playvirtual train)
The file is written after each part, and parts that it has already are not measured again: an interrupted measurement
goes on where it was. A sweep of twelve runs is timed by results/run_queue.py. `--toys` tries the script with toy tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from script import Parser, new_file, one_of, run

import playvirtual
from playvirtual.bench.profiling import machine
from playvirtual.device import resolve_device
from playvirtual.errors import InputError
from playvirtual.study.report.tables.table import Table

Figures = dict[str, float]  # by the name of a target

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
REPEATS = 15
SUFFIXES = (".py", ".cu", ".cuh")  # of what is measured


@dataclass(frozen=True)
class Tasks:
    """What stands for the paper's tasks, and how long the whole run is."""

    pong: str = "atari/pong"
    alien: str = "atari/alien"
    cartpole: str = "dmc/cartpole-swingup"
    run: tuple[str, ...] = ()  # options of the whole run


TOYS = Tasks("toy/catch", "toy/catch", "toy/reach", ("--steps", "600"))


@dataclass(frozen=True)
class Target:
    """A row of the table of docs/performance.md."""

    what: str
    limit: float
    unit: str
    at_least: bool = False

    @property
    def text(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"

    def met(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit


TARGETS = {
    "rollout M=12 forward": Target("rollouts of Pong (M = 12), forward", 350, "TFLOP/s", at_least=True),
    "rollout M=12 back": Target("rollouts of Pong (M = 12), back", 350, "TFLOP/s", at_least=True),
    "rollout M=36 forward": Target("rollouts of Alien (M = 36), forward", 350, "TFLOP/s", at_least=True),
    "rollout M=36 back": Target("rollouts of Alien (M = 36), back", 350, "TFLOP/s", at_least=True),
    "pong update": Target("Pong update", 1.1, "ms"),
    "alien update": Target("Alien update", 1.6, "ms"),
    "cartpole rate": Target("DMControl updates/s", 170, "updates/s", at_least=True),
    "pong run": Target("Pong, whole run alone, empty caches", 300, "s"),
    "cold start": Target("first update of Pong ready, empty caches", 20, "s"),
    "warm start": Target("first update of Pong ready, full caches", 8, "s"),
}


def run_command(*words: str, caches: Path) -> None:
    """Runs the command line in a process that keeps what it compiles in `caches`; raises if it fails."""
    environment = os.environ | dict.fromkeys(CACHES, str(caches))
    subprocess.run([sys.executable, "-m", "playvirtual", *words], check=True, env=environment, stdout=sys.stderr)


def bench(task: str, folder: Path, caches: Path) -> dict[str, Any]:
    """What `playvirtual bench` measures of a task."""
    path = folder / "bench.json"
    run_command("bench", task, "--repeats", str(REPEATS), "--json", str(path), caches=caches)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def measure_start(tasks: Tasks, folder: Path) -> Figures:
    caches = folder / "caches"
    cold, warm = (bench(tasks.pong, folder, caches) for _ in range(2))
    starts = {"cold start": cold["first_update_s"], "warm start": warm["first_update_s"]}
    return starts | {"pong update": warm["update_ms"]["median"]}


def measure_alien(tasks: Tasks, folder: Path) -> Figures:
    return {"alien update": bench(tasks.alien, folder, folder / "caches")["update_ms"]["median"]}


def measure_cartpole(tasks: Tasks, folder: Path) -> Figures:
    return {"cartpole rate": bench(tasks.cartpole, folder, folder / "caches")["updates_per_s"]}


def measure_rollouts(_tasks: Tasks, folder: Path) -> Figures:
    path = folder / "rollouts.json"
    script = Path(__file__).with_name("rollout_speed.py")
    words = [sys.executable, str(script), "--M", "12,36", "--repeats", str(REPEATS), "--out", str(path)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    return rollout_figures(json.loads(path.read_text(encoding="utf-8")))


def rollout_figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """The two ways of the forward model's rollouts, recorded and virtual ones together, in one launch."""
    both = {M: max(row["N"] for row in rows if row["M"] == M) for M in (12, 36)}
    chosen = [
        row
        for row in rows
        if row["kernels"] == "one launch" and row["N"] == both[row["M"]] and row["way"] != "parameters"
    ]
    return {f"rollout M={row['M']} {row['way']}": row["tflops"] for row in chosen}


def measure_run(tasks: Tasks, folder: Path) -> Figures:
    began = time.monotonic()
    words = ("train", tasks.pong, "--seed", "1", "--quiet", *tasks.run)
    run_command(*words, "--run-dir", str(folder / "run"), caches=folder / "caches")
    return {"pong run": time.monotonic() - began}


PARTS: dict[str, Callable[[Tasks, Path], Figures]] = {
    "start": measure_start,
    "alien": measure_alien,
    "cartpole": measure_cartpole,
    "rollouts": measure_rollouts,
    "run": measure_run,
}


def table(figures: Figures) -> str:
    """The targets that have a figure, as Markdown."""
    rows = [
        (target.what, target.text, f"{figures[name]:.4g} {target.unit}", "yes" if target.met(figures[name]) else "no")
        for name, target in TARGETS.items()
        if name in figures
    ]
    return Table("targets", "Targets", ("what", "target", "measured", "met"), rows).markdown()


def code() -> str:
    """Equal for two calls of the same sources: figures of different ones do not belong into one table."""
    sources = sorted(path for path in Path(playvirtual.__file__).parent.rglob("*") if path.suffix in SUFFIXES)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def measured_before(out: Path, *, toys: bool) -> dict[str, Any]:
    """What the file has, or nothing yet; an `InputError` if it is of another machine or not this script's."""
    here = asdict(machine(resolve_device("auto"))) | {"toys": toys, "code": code()}
    if not out.exists():
        return {"machine": here, "figures": {}}
    try:
        content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        figures, there = content["figures"], content["machine"] | {"date": here["date"]}  # it may take two days
    except (ValueError, TypeError, KeyError):
        figures, there = None, {}
    if not isinstance(figures, dict):
        raise InputError(f"out: {str(out)!r} is not of this script; allowed: a new file or one that it has written")
    if there != here:
        raise InputError(
            f"out: {str(out)!r} has figures of another machine, of other code or of toys; allowed: a new file"
        )
    return content


def main() -> int:
    """Measures the parts that the file lacks; exit code 1 if one of them failed."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=new_file, required=True, metavar="FILE", help="the figures as JSON")
    parser.add_argument(
        "--only", nargs="+", type=one_of(*PARTS), default=list(PARTS), metavar="PART", help="these parts"
    )
    parser.add_argument("--toys", action="store_true", help="toy tasks in place of the paper's; figures mean nothing")
    options = parser.parse_args()
    out: Path = options.out
    content = measured_before(out, toys=options.toys)
    failed = 0
    for name in dict.fromkeys(options.only):
        if name in content["figures"]:
            print(f"{name}: measured already", file=sys.stderr)
            continue
        print(f"{name}: measuring", file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                content["figures"][name] = PARTS[name](TOYS if options.toys else Tasks(), Path(folder))
        except subprocess.CalledProcessError as error:  # which said why; the other parts are measured all the same
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            failed = 1
            continue
        out.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(table({name: figure for part in content["figures"].values() for name, figure in part.items()}))
    return failed


if __name__ == "__main__":
    run(main)
