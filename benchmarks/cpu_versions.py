"""Two versions of this program on the CPU: agent steps/s of the training loop, measured in turns in one run.

git worktree add ../first COMMIT
python benchmarks/cpu_versions.py ../first . [--rows minatar/breakout:playvirtual toy/catch:playvirtual …]
Both get the second version's settings, one thread, and a replay that real play has filled; then the first runs for some
seconds, then the second, and so on. Prints the median rates, the median ratio of neighbours, and its range.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROWS = ["minatar/breakout:playvirtual", "minatar/breakout:spr", "toy/catch:playvirtual"]
FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "min_size": 400, "steps": 100_000, "seed": 1}
DECIDED = ("task", "method", "preset")  # named by the row
WARM = 40  # agent steps with learning before measuring


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its name, as `build` takes it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found |= flat(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return {name: value for name, value in found.items() if name not in DECIDED}


def work(task: str, method: str, given: dict[str, Any] | None) -> None:
    """One training of the version on the path: its settings, then steps/s for each line of stdin (seconds)."""
    from playvirtual.presets import build

    own = flat(build(task, method=method, **FIXED))
    chosen = own if given is None else {name: value for name, value in given.items() if name in own}
    config = build(task, method=method, **chosen)
    if given is None:
        say(flat(config))
        return
    from playvirtual.training.loop import Training

    training = Training(config)
    for _ in range(config.replay.min_size + WARM):
        training.interact()
        training.learn()
    say({"ignored": sorted(set(given) - set(own)), "unasked": sorted(set(own) - set(given))})
    for line in sys.stdin:
        first, start = training.step, time.monotonic()
        while time.monotonic() < start + float(line):
            training.interact()
            training.learn()
        say((training.step - first) / (time.monotonic() - start))


def say(record: Any) -> None:
    print(json.dumps(record), flush=True)


def start(checkout: Path, task: str, method: str, given: dict[str, Any] | None) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-P", __file__, "--work", task, method, json.dumps(given)],
        env={**os.environ, **threads, "PYTHONPATH": str((checkout / "src").resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], line: str = "") -> Any:
    """The answer to a line, or the next word of its own accord."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"a training ended with exit code {process.wait()}")
    return json.loads(answer)


def measure(checkouts: tuple[Path, Path], row: str, rounds: int, seconds: float) -> None:
    task, _, method = row.partition(":")
    settings = start(checkouts[1], task, method, None)
    given, _ = ask(settings), settings.wait()
    trainings = [start(checkout, task, method, given) for checkout in checkouts]
    try:
        for checkout, training in zip(checkouts, trainings, strict=True):
            notes = {name: found for name, found in ask(training).items() if found}
            if notes:
                print(f"  {checkout}: {notes}")
        rates = [[ask(training, f"{seconds}\n") for training in trainings] for _ in range(rounds)]
    finally:
        for training in trainings:
            assert training.stdin is not None
            training.stdin.close()
            training.wait()
    ratios = [b / a for a, b in rates]
    first, second = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        f"{row:<30} {first:8.1f} → {second:8.1f} steps/s, ratio {statistics.median(ratios):.2f} "
        f"[{min(ratios):.2f}, {max(ratios):.2f}] of {rounds} rounds of {seconds:g} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="TASK:METHOD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    for row in options.rows:
        measure((options.first, options.second), row, options.rounds, options.seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    else:
        main()
