"""Lists the kernels of one update in the order in which the GPU runs them, with their times and the gaps between them.

python benchmarks/update_kernels.py atari/pong [--method spr] [--updates 5] [--out FILE.csv]
The update is a run's own: compiled, captured and replayed. Times are medians over the updates that the profiler saw,
in microseconds; its own cost makes gaps a little longer. An agent with several kinds of update is listed by the update
that has the most kernels.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from script import Parser, checked, new_file, run, whole
from torch.profiler import ProfilerActivity, profile

from playvirtual.bench.measure import prepare
from playvirtual.errors import InputError

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")  # of the profiler's events, what runs on the device
BETWEEN_UPDATES_S = 0.002  # that the host waits, so that updates can be told apart


class Launch(NamedTuple):
    """One kernel, copy or fill of an update."""

    name: str
    grid: str  # blocks
    block: str  # threads
    shared: int  # bytes of shared memory of a block
    start: float  # microseconds
    duration: float


def launches(updates: int, update: Callable[[], None]) -> list[list[Launch]]:
    """What each of so many updates runs on the GPU, in its order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(updates):
            update()
            torch.cuda.synchronize()
            time.sleep(BETWEEN_UPDATES_S)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return split_updates([_launch(event) for event in events if event.get("cat") in KINDS])


def _launch(event: dict[str, Any]) -> Launch:
    details = event.get("args", {})
    grid, block = ("×".join(map(str, details.get(name, ()))) for name in ("grid", "block"))
    return Launch(event["name"], grid, block, int(details.get("shared memory", 0)), event["ts"], event["dur"])


def split_updates(found: Sequence[Launch]) -> list[list[Launch]]:
    """The launches of each update, which pauses separate, by their start."""
    updates: list[list[Launch]] = []
    end = float("-inf")
    for launch in sorted(found, key=lambda launch: launch.start):
        if launch.start - end > 1e6 * BETWEEN_UPDATES_S / 2:
            updates.append([])
        updates[-1].append(launch)
        end = max(end, launch.start + launch.duration)
    return updates


def table(updates: Sequence[Sequence[Launch]]) -> list[dict[str, object]]:
    """A row per launch: medians over the updates of one kind, the kind with the most launches."""
    sequences = Counter(tuple(launch.name for launch in update) for update in updates)
    names = max(sequences, key=len)
    alike = [update for update in updates if tuple(launch.name for launch in update) == names]
    rows: list[dict[str, object]] = []
    for place, first in enumerate(alike[0]):
        gaps = [u[place].start - (u[place - 1].start + u[place - 1].duration) if place else 0.0 for u in alike]
        rows.append(
            {
                "place": place,
                "us": round(median(u[place].duration for u in alike), 2),
                "gap_us": round(median(gaps), 2),
                "grid": first.grid,
                "block": first.block,
                "shared": first.shared,
                "kernel": first.name,
            }
        )
    return rows


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("task", help="e.g. atari/pong")
    parser.add_argument("--method", default="playvirtual", help="default: playvirtual")
    parser.add_argument("--updates", type=whole(1), default=5, help="that the profiler sees (default: 5)")
    parser.add_argument("--out", type=new_file, help="a CSV file (default: the screen)")
    options = parser.parse_args()
    config = checked(options.task, method=options.method)
    if not torch.cuda.is_available():
        raise InputError("device: this machine has no GPU whose kernels could be listed; allowed: one with a GPU")
    prepared = prepare(config)
    with closing(prepared.trainer):
        update = prepared.trainer.learner.update
        for _ in range(20):
            update()
        torch.cuda.synchronize()
        rows = table(launches(options.updates, update))
    with open(options.out, "w", newline="") if options.out else open(sys.stdout.fileno(), "w", closefd=False) as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    kernels, gaps = (sum(float(str(row[name])) for row in rows) for name in ("us", "gap_us"))
    print(f"{len(rows)} launches, {kernels:.0f} µs, and {gaps:.0f} µs between them", file=sys.stderr)


if __name__ == "__main__":
    run(main)
