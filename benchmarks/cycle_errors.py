"""Measures how well the cycles of trained runs close and what their actions matter for that, on checkpoints.

python benchmarks/cycle_errors.py RUN [RUN ...] [--batches 32] [--device cpu] [--out FILE.csv]
Sequences are drawn from the checkpoint's replay buffer and seen through the run's own augmentation and networks, as its
losses see them. The figures are mean distances, but for the last in the metric of the losses, where it is the
projection 2 − 2 cos:
  prediction    ẑ_{t+k} and s_{t+k}, the mean over k = 1 … K: L_pred / K
  unchanged     f(s_t) and s_{t+k}, the mean over k: the same for a forward model that changes nothing
  cycle         z′_t and s_t along virtual actions: L_cyc
  recorded      the same along the recorded actions
  other way     the same where the way back takes the actions of another trajectory: what actions matter for closing
  no steps      f(s_t) itself and another view of s_t
  other state   f(s_t) and another state of the batch: 0 if all states look alike
  latent        |z′_t − z_t|² along virtual actions, divided by the same for z_t and the state of another sequence
Cycles are left empty for runs without a backward model.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from script import DEVICES, Parser, new_file, run, whole
from torch import Tensor

from playvirtual.device import resolve_device
from playvirtual.errors import InputError
from playvirtual.method import SelfPrediction, VirtualTrajectories
from playvirtual.method.dynamics import RolloutBatch
from playvirtual.method.projection import cosine_distance
from playvirtual.replay.batches import SequenceBatch
from playvirtual.runs.checkpoint import complete
from playvirtual.runs.folder import RunFolder
from playvirtual.training.checkpointing import restore
from playvirtual.training.trainer import Trainer

FIGURES = ("prediction", "unchanged", "cycle", "recorded", "other way", "no steps", "other state", "latent")
COLUMNS = ("task", "method", "seed", "step", *FIGURES)


@torch.no_grad()
def figures(objective: SelfPrediction, batch: SequenceBatch, generator: torch.Generator | None) -> dict[str, float]:
    """The mean distances of one batch of sequences."""
    inputs = objective.draw(batch.actions, generator)
    z = objective.encode(batch.observations, inputs)
    targets = objective.targets(batch.observations, inputs)
    assert objective.h is not None
    z_hat = objective.h.rollout(z, batch.actions)  # (B, K, …)
    B, K = z_hat.shape[:2]
    mask = batch.mask[:, 1:]
    here = _predicted(objective, z)[:, None].expand(-1, K, -1)
    ahead = _predicted(objective, z_hat.flatten(0, 1)).unflatten(0, (B, K))
    found = {
        "prediction": _mean(cosine_distance(ahead, targets.future), mask),
        "unchanged": _mean(cosine_distance(here, targets.future), mask),
    }
    if objective.virtual is None or not objective.M:
        return found
    return found | _cycles(objective.virtual, z, targets.cycle[:, : objective.M], batch.actions, generator)


def _cycles(
    virtual: VirtualTrajectories, z: Tensor, target: Tensor, recorded: Tensor, generator: torch.Generator | None
) -> dict[str, float]:
    """Cycles from z (B, …) to target (B, M, D), along virtual and recorded actions (B, K, …a)."""
    B, M = target.shape[:2]
    actions = virtual.draw(B, z.device, generator, recorded=recorded, z=z)  # (B, M, K, …a)
    (z_hat_K,) = virtual.h.rollouts(RolloutBatch(z, actions.flatten(0, 1), last_only=True))
    z_cycle, other_way = (
        virtual.b.rollouts(RolloutBatch(z_hat_K.flatten(0, 1), way.flatten(0, 1).flip(1), last_only=True))[0][:, 0]
        for way in (actions, actions.roll(1, 0))
    )

    def distance(end: Tensor) -> float:
        return float(virtual.d(virtual.project(end).unflatten(0, (B, M)), target).mean())

    start = z.repeat_interleave(M, 0)
    return {
        "cycle": distance(z_cycle),
        "recorded": float(virtual.loss(z, target[:, :1], recorded[:, None]).mean()),
        "other way": distance(other_way),
        "no steps": distance(start),
        "other state": distance(start.roll(M, 0)),
        "latent": float((z_cycle - start).square().mean() / (start.roll(M, 0) - start).square().mean()),
    }


def _predicted(objective: SelfPrediction, z: Tensor) -> Tensor:
    assert objective.q is not None
    return objective.q(objective.g(z))


def _mean(distances: Tensor, mask: Tensor) -> float:
    return float((distances * mask).sum() / mask.sum())


def measure(path: Path, batches: int, device: torch.device) -> dict[str, object]:
    """A row for the newest checkpoint of the run at `path`."""
    config = replace(RunFolder.open(path).config(), compile="off", device=str(device))
    if not complete(path):
        raise InputError(f"run: '{path}' has no checkpoint; allowed: the folder of a run that has one")
    if config.objective.constraint == "every":
        raise InputError(f"run: '{path}' compares cycles at every step; allowed: runs that compare their ends")
    with closing(Trainer(config)) as trainer:
        restore(trainer, complete(path)[-1], same_config=False)
        agent: Any = trainer.agent
        if getattr(agent, "objective", None) is None or not agent.objective.K:
            raise InputError(f"run: '{path}' predicts nothing; allowed: a run with K > 0")
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(batches):
            batch = trainer.sampler.sample(trainer.learner.schedule).sequences
            for name, value in figures(agent.objective, batch, trainer.generator).items():
                found[name].append(value)
        row = {"task": config.task, "method": config.method, "seed": config.seed, "step": trainer.global_step}
        return row | {name: f"{mean(values):.4f}" for name, values in found.items()}


def _options() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run with a checkpoint")
    parser.add_argument("--batches", type=whole(1), default=32, help="default: 32")
    parser.add_argument("--device", default="cpu", help=f"default: cpu; allowed: {DEVICES}")
    parser.add_argument("--out", type=new_file, help="a CSV file (default: the screen)")
    return parser.parse_args()


def main() -> None:
    """Writes one row for each run."""
    options = _options()
    device = resolve_device(options.device)
    rows: list[Mapping[str, object]] = [measure(path, options.batches, device) for path in options.runs]
    with open(options.out, "w", newline="") if options.out else open(sys.stdout.fileno(), "w", closefd=False) as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    run(main)
