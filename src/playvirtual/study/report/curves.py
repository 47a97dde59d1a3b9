"""The learning curve of a single run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from playvirtual.runs import jsonl
from playvirtual.runs.folder import RunFolder


def standard_error_band(returns: Sequence[float]) -> tuple[float, float]:
    """Mean ± one standard error of the mean; with the biased deviation it never exceeds the range of the returns.

    Quartiles of returns that are +1 or −1 would jump between the two, and the mean could lie outside them.
    """
    mean, error = float(np.mean(returns)), float(np.std(returns)) / len(returns) ** 0.5
    return mean - error, mean + error


def learning_curve(folder: RunFolder, out: Path, *, random_score: float | None = None) -> None:
    """Plots a run's evaluations (mean ± one standard error) and training returns over steps."""
    config = folder.config()
    evaluations, metrics = jsonl.lines(folder.path, "evaluations"), jsonl.lines(folder.path, "metrics")
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    training = [(m["step"], m["return"]) for m in metrics if m["return"] is not None]
    if training:
        axes.plot(*zip(*training, strict=True), color="0.65", lw=1.2, label="training episodes")
    steps = [e["step"] for e in evaluations]
    bands = [standard_error_band(e["returns"]) for e in evaluations]
    if bands:
        low, high = zip(*bands, strict=True)
        axes.fill_between(steps, low, high, color="C0", alpha=0.18, lw=0, label="mean ± one standard error")
    axes.plot(steps, [e["mean"] for e in evaluations], "o-", color="C0", lw=2, ms=4, label="evaluation, mean")
    if random_score is not None:
        axes.axhline(random_score, color="C3", ls="--", lw=1.2, label="random play")
    axes.set(
        title=f"{config.task}: {config.method}, seed {config.seed}",
        xlabel=f"{config.step_unit} steps",
        ylabel="return",
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)
