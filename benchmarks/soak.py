"""Sweeps over several hundred very short runs and watches the memory and the open files of the sweeping process.

    python benchmarks/soak.py --runs 300

Prints a line for each tenth of the runs, then how much memory and open files have grown since the second fifth, what
the same command takes when everything is finished, and what the report of all runs takes. The exit code is 1 if a run
failed, or if memory or open files have grown by more than what is allowed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from script import Parser, run, whole

GRID = (
    *("toy", "--suite", "toy/catch", "--rows", "rl", "--steps", "45", "--learning-starts", "40", "--K", "1"),
    *("--eval-episodes", "1", "--eval-every", "0", "--batch-size", "4", "--checkpoint-every", "0", "--device", "cpu"),
)
EVERY = 0.5  # seconds between two looks
GROWTH_MB, GROWTH_FILES = 8.0, 4  # allowed between the second fifth of the runs and the last


@dataclass(frozen=True)
class Sample:
    """The sweeping process at one moment."""

    finished: int
    seconds: float
    memory_mb: float  # resident
    files: int  # open
    threads: int


def look(process: int, out: Path, began: float) -> Sample | None:
    """Reads /proc; None if the process has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        files = len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return None
    if "VmRSS" not in status:
        return None  # it has ended and was not waited for yet
    finished = len(list(out.glob("*/*/*/sweep.json")))
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Sample(finished, time.monotonic() - began, memory, files, int(status["Threads"]))


def soak(words: list[str], out: Path) -> tuple[list[Sample], int]:
    """Runs the sweep; returns the samples and the exit code."""
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    samples = []
    try:
        while process.poll() is None:
            if (sample := look(process.pid, out, began)) is not None:
                samples.append(sample)
            time.sleep(EVERY)
    finally:
        process.terminate()
        process.wait()
    return samples, process.returncode


def growth(samples: list[Sample], runs: int) -> tuple[float, int]:
    """How much larger memory (MB) and open files are at most in the last fifth of the runs than in the second."""
    early = [s for s in samples if 0.2 * runs <= s.finished < 0.4 * runs]
    late = [s for s in samples if s.finished >= 0.8 * runs]
    if not early or not late:
        raise SystemExit("the runs ended faster than they could be watched")
    memory = max(s.memory_mb for s in late) - max(s.memory_mb for s in early)
    return memory, max(s.files for s in late) - max(s.files for s in early)


def _timed(words: list[str]) -> tuple[float, str]:
    began = time.monotonic()
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return time.monotonic() - began, said


def main() -> int:
    """Prints the table and the verdict."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=whole(20), default=300, help="of the sweep (default: %(default)s)")
    parser.add_argument("--workers", type=whole(1), default=2, help="runs at a time (default: 2)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    program = [sys.executable, "-m", "playvirtual"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs"
        words = [*program, "sweep", *GRID, "--seeds", str(options.runs), "--out", str(out)]
        words += ["--workers", str(options.workers)]
        samples, code = soak(words, out)
        print("runs finished   seconds   memory (MB)   open files   threads")
        for tenth in range(10):
            span = [s for s in samples if tenth <= 10 * s.finished / options.runs < tenth + 1]
            if span:
                last, memory, files = span[-1], max(s.memory_mb for s in span), max(s.files for s in span)
                print(f"{last.finished:13d} {last.seconds:9.0f} {memory:13.1f} {files:12d} {last.threads:9d}")
        finished = len(list(out.glob("*/*/*/sweep.json")))
        memory, files = growth(samples, options.runs)
        print(
            f"{finished} of {options.runs} runs finished, exit code {code}; since the second fifth of the runs: ",
            end="",
        )
        print(f"memory {memory:+.1f} MB, open files {files:+d}")
        again, _ = _timed(words)
        report, said = _timed([*program, "report", str(out), "--out", str(Path(folder) / "report")])
        print(f"the same sweep again: {again:.1f} s; its report: {report:.1f} s ({said.splitlines()[0]})")
    return int(code != 0 or finished < options.runs or memory > GROWTH_MB or files > GROWTH_FILES)


if __name__ == "__main__":
    run(main)
