"""Times one update by compile mode, precision, task and method, and as M, K and the batch size grow.

python benchmarks/update_speed.py [--jobs N] [--only SUBSTRING ...] [--out FILE.json] [--markdown]
Each row is a process of its own that plays, compiles and captures CUDA graphs beside up to N − 1 others. Then they are
measured one after the other while the others wait, so that nothing else runs on the device. The floor is the time of
the eager update's matrix products and convolutions at the device's peak throughput by its data sheet.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from script import DEVICES, Parser, checked, new_file, run, whole
from torch.utils.flop_counter import FlopCounterMode

from playvirtual import kernels
from playvirtual.bench.measure import REPEATS, Measurement, measure, prepare
from playvirtual.bench.profiling import machine
from playvirtual.bench.table import rate
from playvirtual.config.build import build
from playvirtual.device import resolve_device
from playvirtual.errors import InputError
from playvirtual.training.trainer import Trainer

# Dense tensor-core peaks in FLOP/s by the first word that fits the device's name; NVIDIA's H200 data sheet.
PEAKS = {"H200": {"bf16": 989e12, "tf32": 495e12, "fp32": 67e12}}
FLOP_FILL = 60  # agent steps before the update whose FLOPs are counted: more than K and n_step


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    section: str
    task: str
    compile: str
    precision: str
    method: str = "playvirtual"
    change: dict[str, Any] = field(default_factory=dict)  # of the preset's values

    @property
    def label(self) -> str:
        changes = " ".join(f"{name}={value}" for name, value in self.change.items())
        return " ".join(filter(None, [self.section, self.task, self.method, changes, self.compile, self.precision]))

    @property
    def times_steps(self) -> bool:
        """Whether whole agent steps are timed too."""
        return not self.section.startswith("growth")

    def options(self) -> dict[str, Any]:
        return {"method": self.method, "compile": self.compile, "precision": self.precision, **self.change}


def rows() -> Iterator[Row]:
    """All rows, the eager ones first."""
    pong, alien, cartpole = "atari/pong", "atari/alien", "dmc/cartpole-swingup"
    for mode, precision in [("off", "fp32"), ("off", "tf32"), ("cudagraph", "tf32"), ("cudagraph", "bf16")]:
        yield Row("main", pong, mode, precision)
    for precision in ("tf32", "bf16"):
        yield Row("main", pong, "full", precision)
        yield Row("main", pong, "full", precision, "spr")
        yield Row("main", alien, "full", precision)
    for method in ("playvirtual", "spr"):
        for precision in ("tf32", "bf16"):
            yield Row("main", cartpole, "full", precision, method)
    for method in ("der", "otr", "curl", "drq", "curl-virtual", "drq-virtual"):
        yield Row("baselines", pong, "full", "bf16", method)
    for method in ("sac-ae", "curl", "drq", "curl-virtual", "drq-virtual"):
        yield Row("baselines", cartpole, "full", "bf16", method)
    for name, values in {"M": ("0", "1A", "2A", "4A"), "K": (3, 6, 9, 12), "batch_size": (32, 64, 128)}.items():
        for value in values:
            yield Row(f"growth-{name}", pong, "full", "bf16", change={name: value})


@dataclass(frozen=True)
class Result:
    """A measured row; its floor is None where the device's peak is not known."""

    row: Row
    measurement: Measurement
    gflop: float  # of one update, the mean over a period of updates
    floor_ms: float | None


def count_flops(row: Row, device: str) -> float:
    """FLOPs of one eager update, forward and backward, optimizer and element-wise work not counted."""
    options = row.options() | {"compile": "off", "precision": "fp32"}
    config = build(row.task, **options, device=device, learning_starts=FLOP_FILL, steps=1000)
    kernels.use_fused(False)  # the counter sees PyTorch's own operators alone
    try:
        with closing(Trainer(config)) as trainer:
            torch.backends.cudnn.benchmark = False  # a search in fp32 takes minutes on DMControl and counts nothing
            trainer.train(FLOP_FILL - 1)
            pattern, total = trainer.agent.update_pattern, 0
            # One of each kind: a period can have thousands of updates, one of them with a copy to a target network.
            for kind, count in Counter(pattern.kind(update) for update in range(pattern.period)).items():
                with FlopCounterMode(display=False) as counter:
                    trainer.learner.run_update(kind)
                total += count * counter.get_total_flops()
            return float(total) / pattern.period
    finally:
        kernels.use_fused(True)


def floor(flops: float, precision: str, device: str) -> float | None:
    """Milliseconds at the device's peak in that precision."""
    peaks = next((peaks for word, peaks in PEAKS.items() if word in device), None)
    return None if peaks is None else flops / peaks[precision] * 1e3


def work(row: Row, device: str, repeats: int, connection: Connection) -> None:
    """One worker: prepares its row, reports that it is ready, waits for its turn, measures and sends the result."""
    try:
        flops = count_flops(row, device)
        gc.collect()  # a trainer has reference cycles; this one must not count as memory of the row
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        prepared = prepare(build(row.task, **row.options(), device=device))
        with closing(prepared.trainer):
            connection.send("ready")
            connection.recv()  # its turn
            found = measure(prepared, repeats=repeats, loop=row.times_steps)
            connection.send(Result(row, found, flops / 1e9, floor(flops, found.precision, found.machine.device)))
    except Exception:  # the other rows are measured all the same
        connection.send(traceback.format_exc())


def wave(batch: list[Row], device: str, repeats: int) -> Iterator[tuple[Row, Result | str]]:
    """Starts a process per row, waits until all are prepared, then measures one at a time."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    workers = []
    for row in batch:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(row, device, repeats, there))
        process.start()
        there.close()  # so that the end of the process ends the pipe
        workers.append((row, process, here))
    prepared = []
    for row, process, here in workers:
        prepared.append((row, process, here, _receive(here)))
        print(f"prepared: {row.label}", file=sys.stderr, flush=True)
    for row, process, here, answer in prepared:
        if answer == "ready":
            here.send("go")
            answer = _receive(here)
        process.kill()  # the end of a process takes seconds in which the next row could not be measured
        process.join()
        yield row, answer


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return "the process ended without a result (out of memory?)"


def line(result: Result) -> str:
    """One row as text."""
    m = result.measurement
    done = replace(result.row, compile=m.compile, precision=m.precision)  # as used: a CPU has "off" and fp32 only
    memory = m.rss_gib if m.gpu_gib is None else m.gpu_gib
    bound = "" if result.floor_ms is None else f"  floor {result.floor_ms:.3f} ms"
    return (
        f"{done.label:<62} {m.update_ms.median:9.3f} ms [{m.update_ms.q1:.3f}, {m.update_ms.q3:.3f}]"
        f"  {rate(m.updates_per_s):>7}/s  first {m.first_update_s:.1f} s  {memory:.2f} GiB"
        f"  {0 if m.kernels is None else m.kernels.per_update:.0f} kernels  {result.gflop:.1f} GFLOP{bound}"
    )


def markdown(results: list[Result]) -> str:
    """The tables of docs/performance.md."""
    parts = []
    for section in dict.fromkeys(result.row.section for result in results):
        chosen = [r for r in results if r.row.section == section]
        steps = chosen[0].row.times_steps
        head = ["task, method", "change", "compile", "precision", "ms per update (quartiles)", "updates/s"]
        head += ["agent steps/s"] if steps else []
        head += ["kernels", "peak memory", "GFLOP", "floor", "first update ready after"]
        lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        for r in chosen:
            m = r.measurement
            memory = m.rss_gib if m.gpu_gib is None else m.gpu_gib
            change = ", ".join(f"{name} = {value}" for name, value in r.row.change.items()) or "none"
            cells = [f"`{m.task}`, `{m.method}`", change, m.compile, m.precision]
            cells += [f"{m.update_ms.median:.2f} ({m.update_ms.q1:.2f} to {m.update_ms.q3:.2f})", rate(m.updates_per_s)]
            cells += ["—" if m.loop is None else rate(m.loop.steps_per_s)] if steps else []
            cells += [
                "—" if m.kernels is None else f"{m.kernels.per_update:.0f}",
                f"{memory:.2f} GiB",
                f"{r.gflop:.1f}",
            ]
            cells += ["—" if r.floor_ms is None else f"{r.floor_ms:.2f} ms", f"{m.first_update_s:.0f} s"]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> int:
    """Measures the chosen rows; exit code 1 if one of them failed."""
    parser = Parser(__doc__)
    parser.add_argument("--jobs", type=whole(1), default=1, help="rows that are prepared at the same time (default: 1)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="SUBSTRING",
        help="only rows whose label has it, or one of several; see --list",
    )
    parser.add_argument("--list", action="store_true", help="print the labels and measure nothing")
    parser.add_argument("--repeats", type=whole(2), default=REPEATS, help="blocks per row (default: %(default)s)")
    parser.add_argument("--device", default="auto", help=f"{DEVICES} (default: auto)")
    parser.add_argument(
        "--out",
        type=new_file,
        metavar="FILE",
        help="write everything as JSON; after each row, so that an interruption loses nothing",
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables for docs/performance.md at the end")
    options = parser.parse_args()
    labels = [row.label for row in rows()]
    for part in options.only:
        if not any(part in label for label in labels):
            raise InputError(f"only: {part!r} is in no row's label; allowed: a part of a label that --list shows")
    chosen = [row for row in rows() if any(part in row.label for part in options.only)]
    if options.list:
        print("\n".join(row.label for row in chosen))
        return 0
    same: dict[str, list[Row]] = {}  # rows of one configuration, the preset's, which every table has
    for row in chosen:
        config = checked(row.task, **row.options(), device=options.device)
        same.setdefault(json.dumps(asdict(config), sort_keys=True), []).append(row)
    jobs, once = options.jobs, [twins[0] for twins in same.values()]
    twins_of = {twins[0].label: twins for twins in same.values()}
    cores = os.cpu_count() or 1
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, cores // jobs)))  # each worker's share
    here = machine(resolve_device(options.device))
    print(here, f"{jobs} prepared at a time" if jobs > 1 else "", sep=", " if jobs > 1 else "", flush=True)
    results, failures = [], 0
    for start in range(0, len(once), jobs):
        for row, answer in wave(once[start : start + jobs], options.device, options.repeats):
            if not isinstance(answer, Result):
                failures += 1
                failed = ", ".join(twin.label for twin in twins_of[row.label])
                print(f"{failed}: failed\n{answer}", file=sys.stderr, flush=True)
                continue
            answers = [replace(answer, row=twin) for twin in twins_of[row.label]]
            print(*map(line, answers), sep="\n", flush=True)
            results += answers
            if options.out:
                content = {"machine": asdict(here), "jobs": jobs, "rows": [asdict(result) for result in results]}
                options.out.write_text(json.dumps(content, indent=1), encoding="utf-8")
    if options.markdown:
        print(f"\n{here}\n\n{markdown(sorted(results, key=lambda result: chosen.index(result.row)))}")
    return int(failures > 0)


if __name__ == "__main__":
    run(main)
