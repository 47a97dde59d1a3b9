"""How long one update takes: eager, CUDA graph, compiled; by precision, method, M, K and batch size.

python benchmarks/update_speed.py [--quick] [--out FILE.json]
Every row is measured in this one process with a replay filled by real play; medians of repeated timings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from playvirtual.presets import build
from playvirtual.training.loop import Training

FILL = 300  # agent steps of random play before measuring


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """What is measured, the plainest version first."""
    pong, alien = "atari/pong", "atari/alien"
    for capture, precision in [
        ("off", "fp32"),
        ("off", "tf32"),
        ("graph", "tf32"),
        ("graph", "bf16"),
        ("compile", "tf32"),
        ("compile", "bf16"),
    ]:
        yield {"task": pong, "method": "playvirtual", "capture": capture, "precision": precision}
    yield {"task": pong, "method": "spr", "capture": "compile", "precision": "bf16"}
    yield {"task": alien, "method": "playvirtual", "capture": "compile", "precision": "bf16"}
    if quick:
        return
    for change in [{"M": "0"}, {"M": "1A"}, {"M": "4A"}, {"K": 3}, {"K": 6}, {"K": 12}, {"batch_size": 64}]:
        yield {"task": pong, "method": "playvirtual", "capture": "compile", "precision": "bf16", **change}


def measure(options: dict[str, Any], repeats: int, device: str) -> dict[str, Any]:
    """Milliseconds per update: median and spread over `repeats` blocks, seconds until the first one ran."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    config = build(**options, device=device, min_size=FILL, steps=10 * FILL)
    training = Training(config)
    for _ in range(FILL):
        training.interact()
    learner = training.learner
    learner.schedule.set(60_000)
    began = time.monotonic()
    for _ in range(5):
        learner.update()
    synchronize()
    started = time.monotonic() - began
    blocks = []
    for _ in range(repeats):
        before = time.perf_counter()
        for _ in range(20):
            learner.update()
        synchronize()
        blocks.append((time.perf_counter() - before) / 20 * 1e3)
    training.env.close()
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    quartiles = statistics.quantiles(blocks, n=4)
    return {
        **options,
        "ms": statistics.median(blocks),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "first_s": started,
        "peak_gib": memory,
    }


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only the main rows")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{name}, torch {torch.__version__}")
    results = []
    for row in rows(options.quick):
        torch._dynamo.reset()
        result = measure(row, options.repeats, options.device)
        results.append(result)
        label = " ".join(str(v) for v in row.values())
        print(
            f"{label:<50} {result['ms']:8.3f} ms  [{result['q1']:.3f}, {result['q3']:.3f}]"
            f"  {1e3 / result['ms']:7.1f}/s  first {result['first_s']:.1f} s  {result['peak_gib']:.2f} GiB",
            flush=True,
        )
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "rows": results}, file, indent=1)


if __name__ == "__main__":
    main()
