"""Whether the fast paths compute what the plain one does: losses, gradients and whole updates against tolerances.

python benchmarks/equality.py [--device cuda] [--tasks atari/pong,dmc/cartpole-swingup] [--only SUBSTRING]
The reference is the eager update in fp32 without hand-written kernels. One seed gives every row the same weights,
the same batch of real play and the same random draws, which is checked to the bit. Losses are compared by the
relative L2 error, gradients by that of each network part. Gradients through many dynamics steps enlarge
any rounding: in fp32 they are held to a tolerance at the task's own K, and those of hand-written kernels to a narrower
one at K = 1, where a mistake stands out, as well; in low precision they are held to theirs at K = 1 and only shown at
the task's own K. A captured update is compared as a whole: the parameters after some updates beside those of eager ones
with the same kernels, relative to how far they have moved. Exit code 1 when a tolerance is exceeded or no row could be
compared on this machine.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from script import DEVICES, Parser, checked, run
from torch import Tensor
from variants import Outcome, Variant, compute, missing, updated

from playvirtual.errors import InputError
from playvirtual.training.devices import machine, resolve

TASKS = {"cuda": ("atari/pong", "dmc/cartpole-swingup"), "cpu": ("toy/catch", "toy/reach")}
REFERENCE = Variant("eager fp32")
COMPILED = Variant("compile fp32", compiled=True)
TF32: dict[str, Any] = {"precision": "tf32", "losses": 1e-2, "gradients": None, "near": 1e-1}
BF16: dict[str, Any] = {"precision": "bf16", "losses": 5e-2, "gradients": None, "near": 5e-1}
VARIANTS = (
    COMPILED,
    Variant("eager tf32", **TF32),
    Variant("compile tf32", compiled=True, **TF32),
    Variant("eager bf16", **BF16),
    Variant("compile bf16", compiled=True, **BF16),
    Variant("fused fp32", fused=True, near=1e-3),
    Variant("fused bf16", fused=True, **BF16),
    Variant("fused compile tf32", compiled=True, fused=True, **TF32),
    Variant("fused compile bf16", compiled=True, fused=True, **BF16),
)


@dataclass(frozen=True)
class Whole:
    """Whole updates in fp32, to be compared with eager ones of the same kernels."""

    name: str
    capture: str
    fused: bool = False


WHOLE = (
    Whole("eager fp32 again", "off"),
    Whole("graph fp32", "graph"),
    Whole("graph fused fp32", "graph", fused=True),
)
MOVED = 5e-2  # tolerance of whole updates: atomic additions differ from run to run, as "eager fp32 again" shows


def relative(found: Tensor, reference: Tensor, scale: Tensor | None = None) -> float:
    """‖found − reference‖ / ‖scale‖, which is the reference unless given; infinite if anything is not finite."""
    error = float((found - reference).norm() / (reference if scale is None else scale).norm().clamp_min(1e-12))
    return error if error == error else float("inf")


def compare(found: Outcome, reference: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """Relative errors of losses and gradients, once the inputs are seen to be the same."""
    if not all(torch.equal(a, b) for a, b in zip(found.inputs, reference.inputs, strict=True)):
        raise RuntimeError("weights, batch or draws differ: the seed does not decide them")
    losses = {name: relative(found.losses[name], value) for name, value in reference.losses.items()}
    gradients = {name: relative(found.gradients[name], value) for name, value in reference.gradients.items()}
    return losses, gradients


def report(task: str, name: str, kind: str, errors: Mapping[str, float], tolerance: float | None) -> bool:
    """Prints one line; whether all errors are within the tolerance, if there is one."""
    good = tolerance is None or all(error <= tolerance for error in errors.values())
    each = "  ".join(f"{part} {error:.1e}" for part, error in errors.items())
    verdict = "shown" if tolerance is None else "ok" if good else "EXCEEDED"
    limit = "none" if tolerance is None else f"{tolerance:.0e}"
    print(f"{task:<21} {name:<19} {kind:<14} {max(errors.values()):>8.1e} {limit:>9}  {verdict:<8}  {each}", flush=True)
    return good


def left_out(task: str, name: str, why: str) -> None:
    """Prints one line for a row that cannot be compared here."""
    print(f"{task:<21} {name:<19} left out: {why}", flush=True)


def check(task: str, device: torch.device, only: str) -> list[bool]:
    """Of all lines of one task that could be compared: whether each is within its tolerance."""
    return [*check_losses(task, device, only), *check_updates(task, device, only)]


def check_losses(task: str, device: torch.device, only: str) -> Iterator[bool]:
    """Losses and gradients of every variant beside the reference's."""
    references: dict[int | None, Outcome] = {}

    def errors(variant: Variant, K: int | None = None) -> tuple[dict[str, float], dict[str, float]]:
        if K not in references:
            references[K] = compute(task, device, REFERENCE, K)
        found = compare(compute(task, device, variant, K), references[K])
        gc.collect()  # a training has cycles, and a replay on the device
        return found

    for variant in VARIANTS:
        if only not in variant.name:
            continue
        if why := missing(variant, device):
            left_out(task, variant.name, why)
            continue
        losses, gradients = errors(variant)
        yield report(task, variant.name, "losses", losses, variant.losses)
        yield report(task, variant.name, "gradients", gradients, variant.gradients)
        if variant.near is not None:
            _, gradients = errors(variant, K=1)
            yield report(task, variant.name, "gradients, K=1", gradients, variant.near)


def check_updates(task: str, device: torch.device, only: str) -> Iterator[bool]:
    """Parameters after whole updates beside those after eager ones."""
    eager: dict[bool, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}  # with fused kernels or without
    # On the CPU a seed decides every bit; on a GPU the second eager run shows what atomic additions alone do.
    tolerance = MOVED if device.type == "cuda" else 0.0
    for row in WHOLE:
        if only not in row.name:
            continue
        why = "CUDA graphs are for GPUs" if row.capture == "graph" and device.type == "cpu" else None
        if why := why or missing(Variant(row.name, fused=row.fused), device):
            left_out(task, row.name, why)
            continue
        if row.fused not in eager:
            eager[row.fused] = updated(task, device, "off", fused=row.fused)
        before, after = eager[row.fused]
        _, found = updated(task, device, row.capture, fused=row.fused)
        moved = {part: relative(found[part], after[part], after[part] - before[part]) for part in after}
        yield report(task, row.name, "parameters", moved, tolerance)
        gc.collect()


def main() -> int:
    """Prints the table; 1 if a tolerance is exceeded or nothing could be compared."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="auto", help=f"{DEVICES} (default: auto)")
    parser.add_argument("--tasks", help="names with commas (default: Pong and Cartpole on a GPU, two toys on the CPU)")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="only rows whose name has it, e.g. bf16")
    options = parser.parse_args()
    device = resolve(checked("toy/catch", device=options.device).device)
    tasks = options.tasks.split(",") if options.tasks else TASKS[device.type]
    for task in tasks:
        checked(task, device=options.device)
    names = [row.name for row in (*VARIANTS, *WHOLE)]
    if not any(options.only in name for name in names):
        raise InputError(f"only: {options.only!r} is in no row's name; allowed: a part of {', '.join(names)}")
    print(machine(device))
    print(f"{'task':<21} {'row':<19} {'of':<14} {'worst':>8} {'tolerance':>9}            each")
    results = [good for task in tasks for good in check(task, device, options.only)]
    if not results:
        print("nothing was compared: every row was left out", file=sys.stderr)
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    run(main)
