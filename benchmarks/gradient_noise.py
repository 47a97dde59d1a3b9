"""Measures how much of each loss' gradient is left when it is computed in fewer digits, on a checkpoint of a real run.

python benchmarks/gradient_noise.py RUN [--batches 8] [--device cuda] [--out FILE.csv]
Batches are drawn from the checkpoint's replay buffer. For every loss of the auxiliary objective, and Rainbow's RL loss,
and every part of the networks the gradient is computed in float64 and in the precisions that the device has, eagerly
and, on a GPU, by the fused kernels. Columns: `norm` is that of the float64 gradient, `error` the relative L2 distance
to it and `cosine` the cosine with it, all medians over the batches; `batches` is the mean cosine between the float64
gradients of two batches, which says how noisy a gradient is by itself; `mean cosine` is that of the means over all
batches, in which both kinds of noise cancel.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from script import DEVICES, Parser, new_file, run, whole
from torch import Tensor
from variants import Variant, default_type, gradients_of, hand_written, missing, parts_of, wide, widen

from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.device import resolve_device
from playvirtual.errors import InputError
from playvirtual.runs.checkpoint import complete
from playvirtual.runs.folder import RunFolder
from playvirtual.training.checkpointing import restore
from playvirtual.training.trainer import Trainer

EXACT = Variant("float64", precision="fp64")
VARIANTS = (
    Variant("fp32"),
    Variant("tf32", precision="tf32"),
    Variant("bf16", precision="bf16"),
    Variant("fused tf32", precision="tf32", fused=True),
    Variant("fused bf16", precision="bf16", fused=True),
)
COLUMNS = ("step", "loss", "part", "precision", "norm", "error", "cosine", "batches", "mean cosine")

Gradients = dict[tuple[str, str], Tensor]  # (loss, part) -> one vector


def gradients(path: Path, variant: Variant, device: torch.device, count: int) -> tuple[int, list[Gradients]]:
    """The checkpoint's step, and the gradients of each of `count` batches, which are the same for every variant."""
    exact = variant.precision == "fp64"
    config = RunFolder.open(path).config()
    config = replace(config, compile="off", device=str(device), precision="fp32" if exact else variant.precision)
    with hand_written(variant.fused), closing(Trainer(config)) as trainer:
        restore(trainer, complete(path)[-1], same_config=False)
        agent: Any = trainer.agent
        drawn = []
        for _ in range(count):
            batch = trainer.sampler.sample(trainer.learner.schedule)
            drawn.append((batch, agent.draw(batch)))
        agent.bf16 = variant.precision == "bf16"  # also on the CPU, where an agent uses fp32 otherwise
        if exact:
            widen(agent)
            drawn = [(wide(batch), wide(randoms)) for batch, randoms in drawn]
        with default_type(torch.float64 if exact else torch.float32):
            return trainer.global_step, [dict(_by_loss(agent, *inputs)) for inputs in drawn]


def _by_loss(agent: Rainbow | Sac, batch: Any, randoms: Any) -> Iterator[tuple[tuple[str, str], Tensor]]:
    """The gradient of the mean of each loss, for each part that the loss has a gradient for."""
    for name in _names(agent):
        with torch.autocast(agent.device.type, torch.bfloat16, enabled=agent.bf16):
            if isinstance(agent, Rainbow):
                losses, parts = agent.losses(batch, randoms), parts_of(agent.online)
            else:
                losses = agent.auxiliary_losses(batch.sequences, randoms.auxiliary)
                parts = {"encoder": [*agent.encoder.parameters()], **parts_of(agent.auxiliary)}
        for part, vector in gradients_of(losses[name].mean(), parts).items():
            if vector.any():
                yield (name, part), vector.double().cpu()


def _names(agent: Rainbow | Sac) -> Sequence[str]:
    if isinstance(agent, Rainbow):
        return agent.loss_names
    return agent.objective.loss_names if agent.objective is not None else ()


def rows(
    step: int, exact: Sequence[Gradients], found: Sequence[Gradients], precision: str
) -> Iterator[dict[str, object]]:
    """A row per loss and part: what `precision` has found beside float64, batch by batch."""
    for loss, part in exact[0]:
        pairs = [(e[loss, part], f[loss, part]) for e, f in zip(exact, found, strict=True)]
        between = [_cosine(a, b) for (a, _), (b, _) in combinations(pairs, 2)]
        means = [torch.stack(vectors).mean(0) for vectors in zip(*pairs, strict=True)]
        values = (
            median(float(e.norm()) for e, _ in pairs),
            median(float((f - e).norm() / e.norm()) for e, f in pairs),
            median(_cosine(e, f) for e, f in pairs),
            mean(between) if between else float("nan"),
            _cosine(*means),
        )
        yield dict(zip(COLUMNS, (step, loss, part, precision, *(f"{v:.3g}" for v in values)), strict=True))


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def _options() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run with a checkpoint")
    parser.add_argument("--batches", type=whole(1), default=8, help="default: 8")
    parser.add_argument("--device", default="auto", help=f"default: {DEVICES}")
    parser.add_argument("--out", type=new_file, help="a CSV file (default: the screen)")
    return parser.parse_args()


def main() -> None:
    options = _options()
    device = resolve_device(options.device)
    if not complete(options.run):
        raise InputError(f"run: '{options.run}' has no checkpoint; allowed: the folder of a run that has one")
    step, exact = gradients(options.run, EXACT, device, options.batches)
    with open(options.out, "w", newline="") if options.out else open(sys.stdout.fileno(), "w", closefd=False) as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for variant in VARIANTS:
            if (reason := missing(variant, device)) is not None:
                print(f"{variant.name}: left out, {reason}", file=sys.stderr)
                continue
            _, found = gradients(options.run, variant, device, options.batches)
            writer.writerows(rows(step, exact, found, variant.name))
            file.flush()  # what is measured stays if the rest is interrupted


if __name__ == "__main__":
    run(main)
