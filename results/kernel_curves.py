"""Draws runs whose rollouts are one launch each way beside runs with a launch per step: results/atari/kernels-GAME.png.

    python results/kernel_curves.py

The runs lie in results/atari/kernels/GAME/KIND/seed-N, those that are complete in results/atari/runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

ATARI = Path(__file__).parent / "atari"
SEEDS = (1, 2, 3)
KINDS = {"one-launch": ("one launch", "#1f7fbf"), "launch-per-step": ("a launch per step", "#d9661f")}
DASHES = ("-", "--", ":")  # by seed
PANELS = {
    "return": "return of training games",
    "loss_rl": "RL loss",
    "loss_pred": "prediction loss",
    "loss_cyc": "cycle loss",
    "grad_norm_stem": "gradient norm, encoder and head",
    "grad_norm_dm": "gradient norm, forward model",
}
BIN = 5_000  # steps over which returns are averaged


def run_of(game: str, kind: str, seed: int) -> Path:
    """The folder of a run."""
    beside = ATARI / "kernels" / game / kind / f"seed-{seed}"
    return beside if beside.exists() else ATARI / "runs" / f"atari-{game}" / "playvirtual" / f"seed-{seed}"


def points(run: Path, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one metric; a return is the mean over the games that ended in so many steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if name != "return":
        kept = [line for line in lines if line.get(name) is not None and line["step"] > 2 * lines[0]["step"]]
        return [line["step"] for line in kept], [line[name] for line in kept]
    ended = np.diff([0, *(line["episodes"] for line in lines)])
    sums: dict[int, list[float]] = {}
    for line, count in zip(lines, ended, strict=True):
        if line.get("return") is not None:
            end = -(-line["step"] // BIN) * BIN
            total, games = sums.setdefault(end, [0.0, 0.0])
            sums[end] = [total + count * line["return"], games + count]
    return list(sums), [total / games for total, games in sums.values()]


def figure(game: str) -> Figure:
    """One panel per metric, one line per run."""
    drawn = Figure(figsize=(15, 7), layout="constrained")
    for axes, (name, title) in zip(drawn.subplots(2, 3).flat, PANELS.items(), strict=True):
        for kind, (label, color) in KINDS.items():
            for seed, dashes in zip(SEEDS, DASHES, strict=True):
                steps, values = points(run_of(game, kind, seed), name)
                axes.plot(np.array(steps) / 1000, values, dashes, color=color, label=f"{label}, seed {seed}", lw=1.3)
        axes.set_title(title)
        axes.set_xlabel("steps, thousands")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].legend(frameon=False, fontsize="small")
    return drawn


def main() -> None:
    """Draws every game that has runs."""
    mpl.rcParams["font.size"] = 10
    for folder in sorted((ATARI / "kernels").iterdir()):
        figure(folder.name).savefig(ATARI / f"kernels-{folder.name}.png", dpi=100)


if __name__ == "__main__":
    main()
