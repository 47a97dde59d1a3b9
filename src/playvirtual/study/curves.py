"""Learning curves of single runs."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from playvirtual.training.run_folder import RunFolder


def learning_curve(folder: RunFolder, out: Path, *, random_score: float | None = None) -> None:
    """Draws a run's evaluations (mean, middle half of the episodes) and training returns against steps."""
    config = folder.config()
    evaluations, metrics = folder.lines("evaluations"), folder.lines("metrics")
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    training = [(m["step"], m["return"]) for m in metrics if m["return"] is not None]
    if training:
        axes.plot(*zip(*training, strict=True), color="0.65", lw=1.2, label="training episodes")
    steps = [e["step"] for e in evaluations]
    low, high = np.percentile([e["returns"] for e in evaluations], [25, 75], axis=1)
    axes.fill_between(steps, low, high, color="C0", alpha=0.18, lw=0, label="middle half of the episodes")
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
