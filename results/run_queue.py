"""Starts as many of the next runs of queue.toml as fit into the minutes given, and packs what they wrote.

    python results/run_queue.py --minutes 25 --per-gpu 6
    tar -xzf runs/queue/COMMIT.tar.gz -C results                # then as results/README.md says: reports, collect.py
    python results/run_queue.py --evaluate runs/queue/COMMIT-trained    # on any machine

Runs that are finished in results/FAMILY/runs or in the work folder, runs/queue/COMMIT, are skipped. When the minutes
are over, the runs that are still going write a checkpoint, and the next call at the same commit resumes them. COMMIT is
the newest that changed the code, so that results may be added and committed between two calls. The archive holds the
configurations and logs of the finished runs and, for each family, provenance.toml with them added. A run that was
stopped in its last evaluation has made all its steps: its logs and its policy, as `playvirtual export` writes it, lie
in runs/queue/COMMIT-trained, and `--evaluate` plays the evaluation and adds the run and its provenance to the results.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

import playvirtual as pv
from playvirtual import files
from playvirtual.api import evaluation
from playvirtual.errors import InputError
from playvirtual.messages import counted
from playvirtual.runs import jsonl
from playvirtual.runs.agents import policy_folder, read_step
from playvirtual.runs.atomic_io import fsync, write_atomic
from playvirtual.runs.folder import RunFolder
from playvirtual.study.engines.engine import Engine, make_engine
from playvirtual.study.sweep.display import display
from playvirtual.study.sweep.experiments import Experiment, Row, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import Changed, sort_out, state, sweep
from playvirtual.study.sweep.time import steps_left
from playvirtual.training.evaluation import evaluation_line

ROOT = Path(__file__).parent
CODE = ("src", "pyproject.toml")  # in the repository: what decides the numbers of a run
PACED_STEPS = 100_000  # that the minutes of a pace are for
LAST_PART = 0.15  # of a run's minutes that a resumed run takes at least: it starts, compiles and plays an evaluation
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
        """How long the rest of the run takes beside `sharing` − 1 others.

        Between two known numbers of runs that share a GPU the minutes are on the line between theirs; below all known
        ones they are those of the smallest, and above all of them they grow with the number.
        """
        task, method = job.config.task, job.config.method
        known = self.paces.get((task, method)) or self.paces.get((task, ""))
        if known is None:
            raise InputError(f"queue: no pace for {task}, {method}; add it to a [[pace]]")
        counts = sorted(known)
        paced = float(np.interp(sharing, counts, [known[count] for count in counts])) * max(1.0, sharing / counts[-1])
        left = max(LAST_PART, steps_left(job) / job.config.steps)
        return paced * left * job.config.steps / PACED_STEPS


def read_queue(path: Path) -> Queue:
    """The queue in that file."""
    record = files.read_toml(path, "queue")
    try:
        return _queue(record)
    except KeyError as error:
        raise InputError(f"queue: {str(path)!r} has no {error}; allowed: as in results/queue.toml") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"queue: {str(path)!r}: {error}; allowed: as in results/queue.toml") from None


def _queue(record: Mapping[str, Any]) -> Queue:
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


def is_finished(job: Job) -> bool:
    """Whether the run in the work folder is finished; one that cannot be read is not."""
    try:
        return state(job) == "finished"
    except Changed:
        raise
    except InputError:
        return False


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


def note(finished: Sequence[Path], work: Path, group: Mapping[str, Any]) -> None:
    """Adds a group with the runs that no earlier call has noted to each WORK/FAMILY/provenance.toml."""
    for family in sorted({run.relative_to(work).parts[0] for run in finished}):
        file = work / family / "provenance.toml"
        noted = {run for before in _groups(file) for run in before["runs"]}
        runs = [str(run.relative_to(work / family)) for run in finished if run.relative_to(work).parts[0] == family]
        if new := sorted({*runs} - noted):
            before = file.read_text(encoding="utf-8") if file.exists() else ""
            write_atomic(file, (before + _group_text({"runs": new, **group})).encode())


def pack(finished: Sequence[Path], work: Path, results: Path) -> Path:
    """Writes WORK.tar.gz with the logs of the finished runs, and provenance.toml of their families, as in results/.

    The runs have been noted. Each group is that of the call which finished its runs. An archive is complete or absent.
    """
    archive = work.with_name(f"{work.name}.tar.gz")
    partial = archive.with_name(f"{archive.name}.partial")
    with tarfile.open(partial, "w:gz") as tar:
        for family in sorted({run.relative_to(work).parts[0] for run in finished}):
            runs = sorted(run for run in finished if run.relative_to(work).parts[0] == family)
            for file in (run / name for run in runs for name in LOGS):
                tar.add(file, str(file.relative_to(work)))
            content = _with_provenance(runs, work / family, results / family).encode()
            member = tarfile.TarInfo(f"{family}/provenance.toml")
            member.size, member.mtime = len(content), int(time.time())
            tar.addfile(member, BytesIO(content))
    fsync(partial)
    partial.rename(archive)
    return archive


def _with_provenance(runs: Sequence[Path], work: Path, results: Path) -> str:
    """A family's provenance.toml in the results, with what that of the work folder says of these runs."""
    before = results / "provenance.toml"
    text = before.read_text(encoding="utf-8") if before.exists() else ""
    chosen = {str(run.relative_to(work)) for run in runs}
    for group in _groups(work / "provenance.toml"):
        if own := [run for run in group["runs"] if run in chosen]:
            text += _group_text({**group, "runs": own})
    return text


def export_trained(jobs: Sequence[Job], work: Path, group: Mapping[str, Any]) -> list[Path]:
    """Exports the runs that lack their last evaluation alone to WORK-trained, their logs beside the weights."""
    made, trained = [], work.with_name(f"{work.name}-trained")
    for job in jobs:
        if _lacks_evaluation_alone(job):
            out = trained / job.path.relative_to(work)
            if not out.exists():
                out.parent.mkdir(parents=True, exist_ok=True)
                pv.export(job.path, out)
                for name in jsonl.NAMES:
                    if (log := job.path / f"{name}.jsonl").exists():
                        shutil.copy(log, out)
            made.append(out)
    note(made, trained, {**group, "note": "the last evaluation was played afterwards, on another machine"})
    return made


def _lacks_evaluation_alone(job: Job) -> bool:
    """Whether the run has the weights of its last step and no score of them.

    Its logs alone do not tell: a run that was killed, or found the disk full, as it wrote its last checkpoint has made
    all its steps, and has the weights of an earlier one.
    """
    if jsonl.last(job.path, "metrics").get("step") != job.config.steps or is_finished(job):
        return False
    try:
        return read_step(policy_folder(RunFolder(job.path))) == job.config.steps
    except InputError:  # there is no checkpoint that can be read: the next call says so
        return False


def evaluate_trained(folder: Path, results: Path, device: str) -> None:
    """Plays the last evaluation of what `export_trained` wrote to a folder, and adds the runs to the results.

    They are complete runs then, but for the time that their evaluation took.
    """
    for config in sorted(folder.rglob("config.json")):
        trained, run = config.parent, results / config.parent.relative_to(folder)
        if run.exists():
            continue
        print(f"evaluating {trained}", flush=True)
        step, returns = evaluation(trained, device=device)
        line = evaluation_line(RunFolder.open(trained).config(), step, returns)
        partial = run.with_name(f"{run.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for log in (trained / name for name in LOGS):
            if log.exists():
                shutil.copy(log, partial)
        jsonl.append(partial, "evaluations", line)
        family = run.relative_to(results).parts[0]
        text = _with_provenance([trained], folder / family, results / family)
        partial.rename(run)
        write_atomic(results / family / "provenance.toml", text.encode())
        print(f"{run}: {line['mean']:.4g} ± {line['std']:.4g}", flush=True)


def _groups(file: Path) -> list[dict[str, Any]]:
    """The groups of a provenance.toml; none if there is none."""
    return list(files.read_toml(file, "provenance").get("group", [])) if file.exists() else []


def _group_text(group: Mapping[str, Any]) -> str:
    lines = ["", "[[group]]", "runs = [", *(f'  "{run}",' for run in group["runs"]), "]"]
    rest = {name: value for name, value in group.items() if name != "runs"}
    lines += [f"{name} = {value}" if isinstance(value, date) else f'{name} = "{value}"' for name, value in rest.items()]
    return "\n".join([*lines, ""])


def _family(task: str) -> str:
    return task.partition("/")[0]


def _commit() -> str:
    """The newest commit that changed the code, marked if files of the code that git tracks are changed."""
    git = ["git", "-C", str(ROOT.parent)]
    try:
        words = [*git, "log", "-1", "--format=%h", "--", *CODE]
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *CODE], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        raise InputError("commit: git does not tell it; give --commit") from None
    if not commit:
        raise InputError("commit: git knows none of the code; give --commit")
    return f"{commit}-changed" if changed else commit


def _machine(sharing: int, workers: int) -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    beside = f"{sharing} runs sharing a GPU" if torch.cuda.is_available() else f"{counted(workers, 'run')} at a time"
    return f"{name}, {os.cpu_count()} cores, PyTorch {torch.__version__}, {beside}"


def _command(options: argparse.Namespace) -> str:
    words = f"python results/run_queue.py --minutes {options.minutes:g} --per-gpu {options.per_gpu}"
    words += f" --workers {options.workers}" if options.workers else ""
    return words if options.device == "auto" else f"{words} --device {options.device}"


def carry_out(chosen: Sequence[Job], engine: Engine, minutes: float) -> int:
    """Sweeps the runs and stops the sweep, which then can be resumed, after `minutes`; returns the exit code.

    That is 0 if none failed before the minutes were over, 1 if one did, 128 + N if signal N stopped the sweep before.
    """
    over, timed_out = threading.Event(), threading.Event()
    # A signal that comes while the engine ends its processes, after the last run, ends nothing else.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    timer = threading.Thread(target=_stop_after, args=(60 * minutes, over, timed_out), daemon=True)
    timer.start()
    try:
        result = sweep(chosen, engine, display())
    finally:
        over.set()
        timer.join()
        signal.signal(signal.SIGTERM, before)
    for path, error in result.failed.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    for job in result.waiting:
        print(f"stopped: {job.title}; the next call resumes it", file=sys.stderr)
    if result.stopped_by and not timed_out.is_set():
        return 128 + result.stopped_by
    return int(bool(result.failed))


def _stop_after(seconds: float, over: threading.Event, timed_out: threading.Event) -> None:
    """Sends this process a SIGTERM after so many seconds and in each one after that, until `over` is set."""
    while not over.wait(seconds):
        timed_out.set()
        os.kill(os.getpid(), signal.SIGTERM)
        seconds = 1.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="that the runs may take")
    parser.add_argument(
        "--evaluate", type=Path, metavar="FOLDER", help="play the evaluations of trained runs, start none"
    )
    parser.add_argument("--per-gpu", type=int, default=6, help="runs that share a GPU (default: 6)")
    parser.add_argument("--workers", type=int, help="runs at a time (default: GPUs × per-gpu, or the cores)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--queue", type=Path, default=ROOT / "queue.toml", help="the queue (default: queue.toml here)")
    parser.add_argument("--results", type=Path, default=ROOT, help="where finished runs lie (default: this folder)")
    parser.add_argument("--out", type=Path, default=Path("runs/queue"), help="for new runs (default: runs/queue)")
    parser.add_argument("--commit", help="of the code that runs (default: what git tells)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be started")
    options = parser.parse_args()
    if (options.minutes is None) == (options.evaluate is None):
        raise InputError("minutes: and evaluate; allowed: one of them")
    if options.evaluate is not None and not options.evaluate.is_dir():
        raise InputError(f"evaluate: {str(options.evaluate)!r} is no folder; allowed: what an earlier call has written")
    return options


def main() -> int:
    options = _options()
    if options.evaluate is not None:
        evaluate_trained(options.evaluate, options.results, options.device)
        return 0
    commit = options.commit or _commit()
    queue, work = read_queue(options.queue), options.out / commit
    common = {} if options.device == "auto" else {"device": options.device}
    engine = make_engine("local", {"workers": options.workers, "per_gpu": options.per_gpu}, options.device)
    workers = int(getattr(engine, "workers", 1))
    planned = unpublished(queue, options.results, work, common)
    _, waiting, unreadable = sort_out(planned)
    chosen = fitting(waiting, queue, options.minutes, workers, min(options.per_gpu, workers))
    print(f"{counted(len(waiting), 'run')} to do, {len(chosen)} of them fit into {options.minutes:g} minutes")
    for path, error in unreadable.items():
        print(f"unreadable: {path}: {error}", file=sys.stderr)
    if options.dry_run:
        print("\n".join(f"{job.title}: playvirtual {shlex.join(job.command())}" for job in chosen))
        return 0
    code = carry_out(chosen, engine, options.minutes) if chosen else 0
    group = {
        "commit": commit,
        "machine": _machine(min(options.per_gpu, workers), workers),
        "command": _command(options),
        "date": date.today(),
    }
    if made := [job.path for job in planned if is_finished(job)]:
        note(made, work, group)
        print(f"{counted(len(made), 'finished run')}: {pack(made, work, options.results)}")
    for path in export_trained(planned, work, group):
        print(f"trained, not evaluated: {path}")
    return code or int(bool(unreadable))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"error: {error}")
    except OSError as error:  # a full disk, or a file that is gone
        sys.exit(f"error: {error.filename or 'file'}: {error.strerror}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
