"""Measures the targets of docs/performance.md on this machine, one after the other, alone on the device.

python benchmarks/targets.py --out targets.json [--only PART ...] [--seed 1] [--keep FOLDER] [--toys]
Parts, each in processes of its own:
  start     Pong's first update with empty caches and once more with full ones (playvirtual bench)
  updates   updates of Pong, Alien and Cartpole, prepared side by side and timed in turns (update_speed.py)
  rollouts  rollouts of Pong's and Alien's size alone (rollout_speed.py; a Hopper GPU)
  run       the whole run of Pong with empty caches, from the command to its end (playvirtual train)
The file is written after each part, and parts that it has already are not measured again: an interrupted measurement
goes on where it was. A sweep of twelve runs is timed by results/run_queue.py. `--keep` leaves the whole run of Pong,
which has that seed, in a new folder. `--toys` tries the script with toy tasks.
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

from script import Parser, new_file, one_of, run, whole

import playvirtual
from playvirtual.bench.profiling import machine
from playvirtual.device import resolve_device
from playvirtual.errors import InputError
from playvirtual.study.report.tables.table import Table

Figures = dict[str, float]  # by the name of a target

HERE = Path(__file__).parent
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
REPEATS = 15
SUFFIXES = (".py", ".cu", ".cuh")  # of what is measured


@dataclass(frozen=True)
class Tasks:
    """What stands for the paper's tasks, and how long the whole run is."""

    pong: str = "atari/pong"
    updates: tuple[str, ...] = ("atari/pong", "atari/alien", "dmc/cartpole-swingup")
    run: tuple[str, ...] = ()  # options of the whole run


TOYS = Tasks("toy/catch", (), ("--steps", "600"))


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


@dataclass(frozen=True)
class Wanted:
    """What is measured, and where the whole run is left; None: nowhere."""

    tasks: Tasks
    seed: int = 1
    keep: Path | None = None


def run_python(*words: str, caches: Path) -> None:
    """Runs Python in a process that keeps what it compiles in `caches`; raises if it fails."""
    environment = os.environ | dict.fromkeys(CACHES, str(caches))
    subprocess.run([sys.executable, *words], check=True, env=environment, stdout=sys.stderr)


def measure_start(wanted: Wanted, folder: Path) -> Figures:
    path = folder / "bench.json"
    starts = {}
    for name in ("cold start", "warm start"):
        words = ("bench", wanted.tasks.pong, "--repeats", "2", "--json", str(path))
        run_python("-m", "playvirtual", *words, caches=folder / "caches")
        starts[name] = float(json.loads(path.read_text(encoding="utf-8"))["first_update_s"])
    return starts


def measure_updates(wanted: Wanted, folder: Path) -> Figures:
    path, tasks = folder / "updates.json", wanted.tasks.updates
    if not tasks:  # update_speed.py has no rows of toys
        return {}
    labels = [f"main {task} playvirtual full bf16" for task in tasks]
    words = ["--only", *labels, "--jobs", str(len(tasks)), "--repeats", str(REPEATS), "--out", str(path)]
    run_python(str(HERE / "update_speed.py"), *words, caches=folder / "caches")
    return update_figures(json.loads(path.read_text(encoding="utf-8"))["rows"])


def update_figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Medians of the updates' times and rates, by what update_speed.py wrote."""
    pong, alien, cartpole = (
        next(row["measurement"] for row in rows if row["row"]["task"] == task) for task in Tasks().updates
    )
    return {
        "pong update": pong["update_ms"]["median"],
        "alien update": alien["update_ms"]["median"],
        "cartpole rate": cartpole["updates_per_s"],
    }


def measure_rollouts(_wanted: Wanted, folder: Path) -> Figures:
    path = folder / "rollouts.json"
    words = ["--M", "12,36", "--repeats", str(REPEATS), "--out", str(path)]
    run_python(str(HERE / "rollout_speed.py"), *words, caches=folder / "caches")
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


def measure_run(wanted: Wanted, folder: Path) -> Figures:
    tasks, run = wanted.tasks, wanted.keep or folder / "run"
    began = time.monotonic()
    words = ("train", tasks.pong, "--seed", str(wanted.seed), "--quiet", *tasks.run, "--run-dir", str(run))
    run_python("-m", "playvirtual", *words, caches=folder / "caches")
    return {"pong run": time.monotonic() - began}


PARTS: dict[str, Callable[[Wanted, Path], Figures]] = {
    "start": measure_start,
    "updates": measure_updates,
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
    parser.add_argument("--seed", type=whole(0), default=1, help="of the whole run (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the whole run in this folder")
    parser.add_argument("--toys", action="store_true", help="toy tasks in place of the paper's; figures mean nothing")
    options = parser.parse_args()
    out: Path = options.out
    wanted = Wanted(TOYS if options.toys else Tasks(), options.seed, options.keep)
    content = measured_before(out, toys=options.toys)
    failed = 0
    for name in dict.fromkeys(options.only):
        if name in content["figures"]:
            print(f"{name}: measured already", file=sys.stderr)
            continue
        print(f"{name}: measuring", file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                content["figures"][name] = PARTS[name](wanted, Path(folder))
        except subprocess.CalledProcessError as error:  # which said why; the other parts are measured all the same
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            failed = 1
            continue
        out.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(table({name: figure for part in content["figures"].values() for name, figure in part.items()}))
    return failed


if __name__ == "__main__":
    run(main)
