"""Compares the fast paths with the eager update: losses, gradients and whole updates.

python benchmarks/equality.py [--device cuda] [--tasks atari/pong,dmc/cartpole-swingup] [--only SUBSTRING]
The reference is the eager update in float64 without hand-written kernels. One seed gives every row the same weights,
the same batch of recorded play and the same random inputs, which is checked bit for bit. Errors are relative (L2).
Losses have a tolerance by precision. Gradients through many dynamics steps amplify any rounding, however they are
computed, so those of a fast path are limited by the error of PyTorch's eager update in the same precision, which has
its own rows: each network part's error may be at most four times as large (the limit is never less than 1e-5 in fp32,
0.02 in tf32, 0.2 in bf16), at the task's own K and at K = 1, where a mistake stands out. On a GPU, losses that are
compiled without hand-written kernels are compared at K = 1 only.
A CUDA graph is compared as a whole update, at K = 1: the same state is updated twice eagerly and once by replaying the
graph. Its changes of Adam's first moments (linear in the gradients), of the step counts and of the priorities, and its
changes of the parameters, may be at most four times as far from those of the first eager update as those of the second
are (the limit is never less than 0.01 and, since Adam amplifies the smallest gradients, 0.1 for parameters). On a GPU
the two eager updates differ by the order of atomic additions, on the CPU by nothing.
The number after "moments" and "parameters" is the kind of update: not every update of SAC moves the actor and targets.
Exit code 1 if a limit is exceeded or no row can be compared on this machine.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping

import torch
from script import DEVICES, Parser, checked, run
from torch import Tensor
from variants import Outcome, RepeatedUpdate, Variant, compute, missing, repeat_updates

from playvirtual.bench.profiling import machine
from playvirtual.device import resolve_device
from playvirtual.errors import InputError

TASKS = {"cuda": ("atari/pong", "dmc/cartpole-swingup"), "cpu": ("toy/catch", "toy/reach")}
REFERENCE = Variant("eager fp64", "fp64")
EAGER = {precision: Variant(f"eager {precision}", precision) for precision in ("fp32", "tf32", "bf16")}
COMPILED = Variant("compile fp32", compiled=True)
FAST = (
    COMPILED,
    Variant("compile bf16", "bf16", compiled=True),
    Variant("fused fp32", fused=True),
    Variant("fused bf16", "bf16", fused=True),
    Variant("fused compile tf32", "tf32", compiled=True, fused=True),
    Variant("fused compile bf16", "bf16", compiled=True, fused=True),
)
LOSSES = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}  # tolerances: 23, 10 and 7 bits of mantissa
FACTOR = 4.0  # times PyTorch's own error, but a limit is never less than:
MIN_LIMIT = {"fp32": 1e-5, "tf32": 2e-2, "bf16": 2e-1}


WHOLE = {"cudagraph fp32": False, "cudagraph fused fp32": True}  # name -> with hand-written kernels
REPEATED = {False: "eager fp32 repeated", True: "eager fused fp32 repeated"}
MIN_CHANGE_LIMIT = {"moments": 1e-2, "parameters": 1e-1}


def relative(found: Tensor, reference: Tensor, scale: Tensor | None = None) -> float:
    """‖found − reference‖ / ‖scale‖, which is the reference unless given; infinite if anything is not finite."""
    error = float((found - reference).norm() / (reference if scale is None else scale).norm().clamp_min(1e-12))
    return error if error == error else float("inf")


def compare(found: Outcome, reference: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """Relative errors of losses and gradients, after a check that the inputs are the same."""
    if not all(torch.equal(a, b) for a, b in zip(found.inputs, reference.inputs, strict=True)):
        raise RuntimeError("weights, batch or random inputs differ: the seed does not decide them")
    losses = {name: relative(found.losses[name], value) for name, value in reference.losses.items()}
    gradients = {name: relative(found.gradients[name], value) for name, value in reference.gradients.items()}
    return losses, gradients


def report(task: str, name: str, kind: str, errors: Mapping[str, float], limits: Mapping[str, float] | None) -> bool:
    """Prints one line; whether all errors are within their limits, if there are any."""
    worst = max(errors, key=lambda part: errors[part] / ((limits and limits[part]) or 1.0))
    good = limits is None or errors[worst] <= limits[worst]
    each = "  ".join(f"{part} {error:.1e}" for part, error in errors.items())
    verdict = "shown" if limits is None else "ok" if good else "EXCEEDED"
    limit = "none" if limits is None else f"{limits[worst]:.1e}"
    print(f"{task:<21} {name:<25} {kind:<15} {errors[worst]:>8.1e} {limit:>8}  {verdict:<8}  {each}", flush=True)
    return good


def within(eager: Mapping[str, float], least: float) -> dict[str, float]:
    """The limits of a fast path's errors, from those of PyTorch's eager update."""
    return {part: max(FACTOR * error, least) for part, error in eager.items()}


def left_out(task: str, name: str, why: str) -> None:
    """Prints one line for a row that cannot be compared on this machine."""
    print(f"{task:<21} {name:<25} left out: {why}", flush=True)


def check(task: str, device: torch.device, only: str) -> list[bool]:
    """Whether each line of one task that could be compared is within its limits."""
    return [*check_losses(task, device, only), *check_updates(task, device, only)]


def check_losses(task: str, device: torch.device, only: str) -> Iterator[bool]:
    """Compares losses and gradients of every fast path, and of the eager update, with the reference."""
    references: dict[int | None, Outcome] = {}
    eager: dict[tuple[str, int | None], dict[str, float]] = {}  # errors of the gradients

    def errors(variant: Variant, K: int | None) -> tuple[dict[str, float], dict[str, float]]:
        if K not in references:
            references[K] = compute(task, device, REFERENCE, K)
        found = compare(compute(task, device, variant, K), references[K])
        gc.collect()  # a trainer has reference cycles, and a replay buffer on the device
        return found

    for variant in FAST:
        if only not in variant.name:
            continue
        if why := missing(variant, device):
            left_out(task, variant.name, why)
            continue
        precision = variant.precision
        for K, kind in ((None, ""), (1, ", K=1")):
            if K is None and device.type == "cuda" and variant.compiled and not variant.fused:
                continue  # no run uses it on a GPU, and compiling many steps takes minutes
            if (precision, K) not in eager:
                losses, eager[precision, K] = errors(EAGER[precision], K)
                report(task, EAGER[precision].name, f"losses{kind}", losses, None)
                report(task, EAGER[precision].name, f"gradients{kind}", eager[precision, K], None)
            losses, gradients = errors(variant, K)
            yield report(task, variant.name, f"losses{kind}", losses, dict.fromkeys(losses, LOSSES[precision]))
            limits = within(eager[precision, K], MIN_LIMIT[precision])
            yield report(task, variant.name, f"gradients{kind}", gradients, limits)


def check_updates(task: str, device: torch.device, only: str) -> Iterator[bool]:
    """Compares what whole updates change with what eager updates of the same state change."""
    cpu = device.type == "cpu"
    for name, fused in WHOLE.items():
        repeated = REPEATED[fused]
        if only not in name and only not in repeated:
            continue
        if why := missing(Variant(name, fused=fused), device):
            left_out(task, name, why)
            continue
        if cpu and only in name:
            left_out(task, name, "CUDA graphs are for GPUs")
        if cpu and only not in repeated:
            continue
        for update in repeat_updates(task, device, fused=fused, K=1):
            for content, least in MIN_CHANGE_LIMIT.items():
                noise = changes(update, content, "repeated")
                label = f"{content} {update.kind}"
                good = report(task, repeated, label, noise, dict.fromkeys(noise, 0.0) if cpu else None)
                if cpu:  # where updates are bit-exact
                    yield good
                elif only in name:
                    yield report(task, name, label, changes(update, content, "replayed"), within(noise, least))
        gc.collect()


def changes(update: RepeatedUpdate, content: str, which: str) -> dict[str, float]:
    """The distance of one repetition from the first update, relative to what that one changed, by part."""
    before, first, found = (getattr(getattr(update, at), content) for at in ("before", "eager", which))
    return {part: relative(found[part], first[part], first[part] - before[part]) for part in first}


def main() -> int:
    """Prints the table; 1 if a limit is exceeded or nothing could be compared."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="auto", help=f"{DEVICES} (default: auto)")
    parser.add_argument("--tasks", help="names with commas (default: Pong and Cartpole on a GPU, two toys on the CPU)")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="only rows whose name has it, e.g. bf16")
    options = parser.parse_args()
    device = resolve_device(checked("toy/catch", device=options.device).device)
    tasks = options.tasks.split(",") if options.tasks else TASKS[device.type]
    for task in tasks:
        checked(task, device=options.device)
    names = [*(variant.name for variant in FAST), *REPEATED.values(), *WHOLE]
    if not any(options.only in name for name in names):
        raise InputError(f"only: {options.only!r} is in no row's name; allowed: a part of {', '.join(names)}")
    print(machine(device))
    print(f"{'task':<21} {'row':<25} {'of':<15} {'worst':>8} {'limit':>8}            each")
    results = [good for task in tasks for good in check(task, device, options.only)]
    if not results:
        print("nothing was compared: every row was left out", file=sys.stderr)
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    run(main)
