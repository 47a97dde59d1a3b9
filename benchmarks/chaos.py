"""Kills runs at random moments, resumes them until they finish, and compares them with uninterrupted runs.

    python benchmarks/chaos.py --kills 30 --seed 1

Every run is started by the same command with --resume, killed by SIGKILL or SIGTERM at a random moment, and started
again. In the end metrics.jsonl and evaluations.jsonl must equal those of an uninterrupted run, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from script import Parser, one_of, run, seconds, whole

RUNS = {
    "toy/catch": ["--steps", "4000", "--eval-every", "500", "--checkpoint-every", "150", "--log-every", "50"],
    "minatar/breakout": [
        *("--steps", "6000", "--learning-starts", "300", "--eval-every", "1000", "--eval-episodes", "10"),
        *("--checkpoint-every", "150", "--log-every", "50", "--capacity", "2000"),
    ],
}
FILES = ("metrics.jsonl", "evaluations.jsonl")
LOCK = "run.lock"


@dataclass
class Tally:
    """What happened to one run."""

    kills: int = 0
    terms: int = 0
    starts: int = 0
    trained: int = 0  # kills after new metrics had been written

    def __str__(self) -> str:
        return f"{self.kills} x SIGKILL, {self.terms} x SIGTERM, at least {self.trained} of them during training"


def command(task: str, options: list[str], run: Path) -> list[str]:
    """The command line, which is the same at every start."""
    words = [sys.executable, "-m", "playvirtual", "train", task, *options, "--device", "cpu", "--quiet"]
    return [*words, "--run-dir", str(run), "--resume"]


def harass(words: list[str], kills: int, longest: float, chance: random.Random) -> Tally:
    """Starts the command and kills it `kills` times, then lets it finish.

    One kill in four comes within the first four seconds of the process, while it loads; the others come up to
    `longest` seconds after it has locked its run folder.
    """
    run = Path(words[words.index("--run-dir") + 1])
    tally, metrics = Tally(), run / "metrics.jsonl"
    while tally.kills + tally.terms < kills:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tally.starts += 1
        before = _content(metrics)
        early = chance.random() < 0.25
        while not early and process.poll() is None and f"process {process.pid} ".encode() not in _content(run / LOCK):
            time.sleep(0.005)
        try:
            code = process.wait(timeout=chance.uniform(0.0, 4.0 if early else longest))
        except subprocess.TimeoutExpired:
            number = chance.choice([signal.SIGKILL, signal.SIGTERM])
            process.send_signal(number)
            code = process.wait()
            tally.kills += number is signal.SIGKILL
            tally.terms += number is signal.SIGTERM
            tally.trained += not before.startswith(_content(metrics))
            # Before the handlers are installed SIGTERM ends a process with its own code.
            if code not in (-signal.SIGKILL, 143, -signal.SIGTERM, 0):
                raise SystemExit(f"killed run ended with code {code}") from None
        else:
            if code:
                raise SystemExit(f"run ended with code {code}")
            break  # finished before it was killed
    tally.starts += 1
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return tally


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def compare(a: Path, b: Path) -> None:
    """Ends the program unless both runs wrote the same bytes."""
    for name in FILES:
        if (a / name).read_bytes() != (b / name).read_bytes():
            raise SystemExit(f"{a / name} and {b / name} differ")


def tasks(text: str) -> list[str]:
    """For `type=`: names with commas."""
    return [one_of(*RUNS)(name) for name in text.split(",")]


def main() -> None:
    """Prints one line per task."""
    parser = Parser(__doc__)
    parser.add_argument("--kills", type=whole(1), default=30, help="per task (default: 30)")
    parser.add_argument(
        "--longest",
        type=seconds(zero=True),
        default=4.0,
        help="seconds of work before a kill, at most (default: %(default)s)",
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="of the moments and signals (default: 0)")
    names = ",".join(RUNS)
    parser.add_argument("--tasks", type=tasks, default=names, help=f"names with commas (default: {names})")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        for task in options.tasks:
            name = Path(folder) / task.replace("/", "-")
            began = time.monotonic()
            words = command(task, RUNS[task], name / "whole")
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            alone = time.monotonic() - began
            words = command(task, RUNS[task], name / "killed")
            tally = harass(words, options.kills, options.longest, random.Random(f"{options.seed} {task}"))
            compare(name / "whole", name / "killed")
            harassed = time.monotonic() - began - alone
            lines = [len((name / "killed" / f).read_text().splitlines()) for f in FILES]
            print(
                f"{task}: {tally}; {lines[0]} lines of metrics, {lines[1]} of evaluations, identical; "
                f"{alone:.0f} s alone, {harassed:.0f} s with kills",
                flush=True,
            )


if __name__ == "__main__":
    run(main)
