"""Starts as many of the next runs of queue.toml as fit into the minutes given, and packs what they wrote.

    python results/run_queue.py --minutes 25 --per-gpu 6
    tar -xzf runs/queue/COMMIT.tar.gz -C results && python results/collect.py

Runs that are finished in results/FAMILY/runs or in the work folder, runs/queue/COMMIT, are skipped. When the minutes
are over, the runs that are still going write a checkpoint, and the next call at the same commit resumes them. The
archive holds the configurations and logs of the finished runs and, for each family, provenance.toml with them added.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

from playvirtual.errors import InputError
from playvirtual.runs import jsonl
from playvirtual.study.engines.engine import Engine, make_engine
from playvirtual.study.sweep.display import display
from playvirtual.study.sweep.experiments import Experiment, Row, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import state, sweep
from playvirtual.study.text import counted

ROOT = Path(__file__).parent
PACED_STEPS = 100_000  # that the minutes of a pace are for
LOGS = ("config.json", *(f"{name}.jsonl" for name in jsonl.NAMES))


@dataclass(frozen=True)
class Entry:
    """Runs that belong together: every task with every seed."""

    name: str
    tasks: tuple[str, ...]
    method: str
    preset: str
    seeds: tuple[int, ...]
    status: str  # "open" or "done"
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[str, ...] = ()  # of a done entry: its run folders, relative to results/

    def jobs(self, work: Path, common: Mapping[str, Any]) -> list[Job]:
        """The entry's runs, seed by seed, in work/FAMILY/runs; `common` are options that change no number."""
        grid = Experiment(self.name, self.name, "queue.toml", (Row(self.name, self.method, self.options),), ())
        found = [
            job
            for task in self.tasks
            for job in jobs(
                grid, suite(task), max(self.seeds), work / _family(task) / "runs", preset=self.preset, options=common
            )
            if job.config.seed in self.seeds
        ]
        return sorted(found, key=lambda job: job.config.seed)


@dataclass(frozen=True)
class Queue:
    """The entries in their order, and the minutes of one run by the number of runs that share a GPU.

    A pace is for a task and a method, or for a task and "", which stands for every other method.
    """

    entries: tuple[Entry, ...]
    paces: Mapping[tuple[str, str], Mapping[int, float]]

    def minutes(self, job: Job, sharing: int) -> float:
        """How long the run takes beside `sharing` − 1 others: as with the next larger number that is known."""
        task, method = job.config.task, job.config.method
        known = self.paces.get((task, method)) or self.paces.get((task, ""))
        if known is None:
            raise InputError(f"queue: no pace for {task}, {method}; add it to a [[pace]]")
        nearest = min((count for count in known if count >= sharing), default=max(known))
        return known[nearest] * max(1.0, sharing / nearest) * job.config.steps / PACED_STEPS


def read_queue(path: Path) -> Queue:
    """The queue in that file."""
    record = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = (
        Entry(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})
        for entry in record["entry"]
    )
    paces = {
        (task, method): {int(count): float(minutes) for count, minutes in pace["minutes"].items()}
        for pace in record["pace"]
        for task in pace["tasks"]
        for method in pace.get("methods", [""])
    }
    return Queue(tuple(entries), paces)


def unpublished(queue: Queue, results: Path, work: Path, common: Mapping[str, Any]) -> list[Job]:
    """The runs of open entries that are not finished in results/, each once, in the order of the queue."""
    planned = [job for entry in queue.entries if entry.status == "open" for job in entry.jobs(work, common)]
    once: dict[Path, Job] = {}
    for job in planned:
        once.setdefault(job.path, job)
    return [
        job for job in once.values() if state(replace(job, path=results / job.path.relative_to(work))) != "finished"
    ]


def fitting(waiting: Sequence[Job], queue: Queue, limit: float, workers: int, sharing: int) -> list[Job]:
    """The runs that end within `limit` minutes if `workers` at a time are started in this order.

    A run that is too long for what is left is passed over, so that a shorter one may fill the rest.
    """
    free_at, chosen = [0.0] * workers, []
    for job in waiting:
        slot = min(range(workers), key=free_at.__getitem__)
        end = free_at[slot] + queue.minutes(job, sharing)
        if end <= limit:
            free_at[slot] = end
            chosen.append(job)
    return chosen


def pack(finished: Sequence[Path], work: Path, results: Path, group: Mapping[str, str]) -> Path:
    """Writes WORK.tar.gz with the logs of the finished runs, and provenance.toml of their families, as in results/."""
    archive = work.with_name(f"{work.name}.tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        for family in sorted({run.relative_to(work).parts[0] for run in finished}):
            runs = sorted(run for run in finished if run.relative_to(work).parts[0] == family)
            for file in (run / name for run in runs for name in LOGS):
                tar.add(file, str(file.relative_to(work)))
            before = results / family / "provenance.toml"
            text = before.read_text(encoding="utf-8") if before.exists() else ""
            content = (text + _group_text([run.relative_to(work / family) for run in runs], group)).encode()
            member = tarfile.TarInfo(f"{family}/provenance.toml")
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return archive


def _group_text(runs: Sequence[Path], group: Mapping[str, str]) -> str:
    lines = ["", "[[group]]", "runs = [", *(f'  "{run}",' for run in runs), "]"]
    return "\n".join([*lines, *(f'{name} = "{value}"' for name, value in group.items()), f"date = {date.today()}", ""])


def _family(task: str) -> str:
    return task.partition("/")[0]


def _commit() -> str:
    """The commit of the working tree, marked if files that it tracks are changed."""
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=-changed"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise InputError("commit: git does not tell it; give --commit") from None


def _machine(sharing: int, workers: int) -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    beside = f"{sharing} runs sharing a GPU" if torch.cuda.is_available() else f"{counted(workers, 'run')} at a time"
    return f"{name}, {os.cpu_count()} cores, PyTorch {torch.__version__}, {beside}"


def carry_out(chosen: Sequence[Job], engine: Engine, minutes: float) -> bool:
    """Sweeps the runs and stops the sweep, which then can be resumed, after `minutes`; says whether none failed."""
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        result = sweep(chosen, engine, display())
    finally:
        timer.cancel()
    for path, error in result.failed.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    for job in result.waiting:
        print(f"stopped: {job.title}; the next call resumes it", file=sys.stderr)
    return not result.failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="that the runs may take")
    parser.add_argument("--per-gpu", type=int, default=6, help="runs that share a GPU (default: 6)")
    parser.add_argument("--workers", type=int, help="runs at a time (default: GPUs × per-gpu, or the cores)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--queue", type=Path, default=ROOT / "queue.toml", help="the queue (default: queue.toml here)")
    parser.add_argument("--results", type=Path, default=ROOT, help="where finished runs lie (default: this folder)")
    parser.add_argument("--out", type=Path, default=Path("runs/queue"), help="for new runs (default: runs/queue)")
    parser.add_argument("--commit", help="of the code that runs (default: what git tells)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be started")
    return parser.parse_args()


def main() -> int:
    options = _options()
    commit = options.commit or _commit()
    queue, work = read_queue(options.queue), options.out / commit
    common = {} if options.device == "auto" else {"device": options.device}
    engine = make_engine("local", {"workers": options.workers, "per_gpu": options.per_gpu}, options.device)
    workers = int(getattr(engine, "workers", 1))
    planned = unpublished(queue, options.results, work, common)
    waiting = [job for job in planned if state(job) != "finished"]
    chosen = fitting(waiting, queue, options.minutes, workers, min(options.per_gpu, workers))
    print(f"{counted(len(waiting), 'run')} to do, {len(chosen)} of them fit into {options.minutes:g} minutes")
    if options.dry_run:
        print("\n".join(f"{job.title}: playvirtual {shlex.join(job.command())}" for job in chosen))
        return 0
    fine = carry_out(chosen, engine, options.minutes) if chosen else True
    if made := [job.path for job in planned if state(job) == "finished"]:
        group = {
            "commit": commit,
            "machine": _machine(options.per_gpu, workers),
            "command": f"python results/run_queue.py --minutes {options.minutes:g} --per-gpu {options.per_gpu}",
        }
        print(f"{counted(len(made), 'finished run')}: {pack(made, work, options.results, group)}")
    return 0 if fine else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"error: {error}")
