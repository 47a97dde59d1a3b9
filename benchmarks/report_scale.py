"""Measures the time and memory of a report on many synthetic run folders.

python benchmarks/report_scale.py --runs 1000
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from script import Parser, make_folder, run, whole

from playvirtual import published
from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.study.report.report import report

TASKS = [
    *(f"atari/{game}" for game in published.human()),
    *(f"minatar/{g}" for g in ("breakout", "asterix", "freeway")),
]
METHODS = ("rl", "spr", "playvirtual", "playvirtual-nd")
LINES = 100  # of metrics.jsonl, as a run of 100k steps writes them


def synthetic_runs(root: Path, count: int) -> None:
    """`count` finished run folders with invented scores that differ by task, method and seed."""
    random = np.random.default_rng(0)
    for number in range(count):
        task, method = TASKS[number % len(TASKS)], METHODS[number // len(TASKS) % len(METHODS)]
        seed = 1 + number // (len(TASKS) * len(METHODS))
        config = build(task, method=method, seed=seed)
        path = root / task.replace("/", "-") / method / f"seed-{seed}"
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({**to_dict(config), "versions": {"playvirtual": "0.1.0"}}))
        game = task.partition("/")[2]
        floor, ceiling = published.random().get(game, 0.0), published.human().get(game, 10.0)
        level = 0.2 + 0.1 * METHODS.index(method) + 0.15 * random.standard_normal()
        steps = np.linspace(config.steps / LINES, config.steps, LINES).astype(int)
        returns = floor + (ceiling - floor) * (level * steps / config.steps + 0.1 * random.standard_normal(LINES))
        metrics = [
            {"step": int(s), "return": float(r), "loss": 0.1, "q": 0.2} for s, r in zip(steps, returns, strict=True)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        episodes = (floor + (ceiling - floor) * (level + 0.1 * random.standard_normal(100))).tolist()
        score = {
            "step": config.steps,
            "mean": float(np.mean(episodes)),
            "std": float(np.std(episodes)),
            "returns": episodes,
        }
        (path / "evaluations.jsonl").write_text(json.dumps(score) + "\n")
        timing = {"step": config.steps, "seconds": 600.0, "environment": 100.0, "update": 450.0, "evaluation": 50.0}
        (path / "timing.jsonl").write_text(json.dumps(timing) + "\n")


def main() -> None:
    """Prints one line of figures."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=whole(1), default=1000, help="synthetic run folders (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the report in this folder (default: deleted)")
    options = parser.parse_args()
    if options.out:
        make_folder("out", options.out)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        synthetic_runs(runs, options.runs)
        began = time.monotonic()
        written = report([runs], options.out or Path(folder) / "report", title="Synthetic runs")
        seconds = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        size = written.page.stat().st_size / 2**20
        print(f"{options.runs} runs: {seconds:.1f} s, {memory:.2f} GB at most, page of {size:.1f} MB")


if __name__ == "__main__":
    run(main)
