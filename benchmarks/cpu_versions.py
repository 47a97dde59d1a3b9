"""Compares two versions of this program on the CPU: agent steps/s of the training loop, measured in turns.

git worktree add ../first COMMIT
python benchmarks/cpu_versions.py ../first . [--rows minatar/breakout:playvirtual toy/catch:playvirtual …]
Both get the second version's settings, one thread, and a replay buffer filled by random play; then the first runs for
some seconds, then the second, and so on. Prints the median rates, the median ratio of neighbours, and its range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from script import Parser, run, seconds, whole

from playvirtual.errors import InputError

ROWS = ["minatar/breakout:playvirtual", "minatar/breakout:spr", "toy/catch:playvirtual"]
WORKER = Path(__file__).with_name("version_worker.py")


def start(checkout: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a worker of the version in `checkout`."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-P", WORKER, *words],
        env={**os.environ, **threads, "PYTHONPATH": str((checkout / "src").resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], line: str = "") -> Any:
    """The worker's answer to a line; without one, its next message."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"a training ended with exit code {process.wait()}")
    return json.loads(answer)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a worker by closing its input."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def settings(checkouts: tuple[Path, Path], rows: list[str]) -> dict[str, dict[str, Any]]:
    """The second version's settings of every row, none of which either version refuses."""
    workers = [start(checkout, "settings", *rows) for checkout in checkouts]
    answers = [ask(worker) for worker in workers]
    for checkout, worker, answer in zip(checkouts, workers, answers, strict=True):
        end(worker)
        if "error" in answer:
            raise InputError(f"rows: the version in {checkout} refuses one; {answer['error']}")
    return dict(answers[1])


def measure(
    checkouts: tuple[Path, Path], row: str, given: dict[str, Any], rounds: int, seconds_each: float
) -> list[tuple[float, float]]:
    """Steps/s of the first and the second version, round by round."""
    trainings = [start(checkout, "train", row, json.dumps(given)) for checkout in checkouts]
    try:
        for checkout, training in zip(checkouts, trainings, strict=True):
            notes = {name: found for name, found in ask(training).items() if found}
            if notes:
                print(f"  {checkout}: {notes}")
        first, second = trainings
        return [(ask(first, f"{seconds_each}\n"), ask(second, f"{seconds_each}\n")) for _ in range(rounds)]
    finally:
        for training in trainings:
            end(training)


def checkout(text: str) -> Path:
    """For `type=`: a folder with this program in it."""
    path = Path(text)
    if not (path / "src" / "playvirtual").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a folder that holds src/playvirtual")
    return path


def row(text: str) -> str:
    """For `type=`: a task and a method, whose names the versions check."""
    if not all(text.partition(":")):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: TASK:METHOD, for example {ROWS[0]}")
    return text


def main() -> None:
    """Prints one line per row."""
    parser = Parser(__doc__)
    parser.add_argument("first", type=checkout, help="the checkout whose rates are divided by")
    parser.add_argument("second", type=checkout, help="the checkout whose rates are divided, and whose settings count")
    parser.add_argument(
        "--rows", type=row, nargs="+", default=ROWS, metavar="TASK:METHOD", help=f"default: {' '.join(ROWS)}"
    )
    parser.add_argument("--rounds", type=whole(1), default=5, help="turns of each version (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds(), default=3.0, help="length of a turn (default: %(default)s)")
    options = parser.parse_args()
    checkouts = (options.first, options.second)
    for name, given in settings(checkouts, options.rows).items():
        rates = measure(checkouts, name, given, options.rounds, options.seconds)
        ratios = [b / a for a, b in rates]
        first, second = (statistics.median(column) for column in zip(*rates, strict=True))
        print(
            f"{name:<30} {first:8.1f} → {second:8.1f} steps/s, ratio {statistics.median(ratios):.2f} "
            f"[{min(ratios):.2f}, {max(ratios):.2f}] of {options.rounds} round{'s' * (options.rounds > 1)} "
            f"of {options.seconds:g} s",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
