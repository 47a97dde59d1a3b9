"""One run's score in a few lines, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from playvirtual import published
from playvirtual.config import Config
from playvirtual.study.counted import counted
from playvirtual.study.scores import hns


def run_summary(config: Config, returns: Sequence[float]) -> str:
    """Mean and spread of the returns; for the paper's games also the HNS and the published scores."""
    mean, std = float(np.mean(returns)), float(np.std(returns))
    score = f"score {mean:.2f} ± {std:.2f} over {counted(len(returns), 'episode')}"
    lines = [f"{config.task} {config.method}, seed {config.seed}: {score}"]
    family, _, name = config.task.partition("/")
    if family == "atari" and name in published.human():
        lines.append(
            f"human-normalised: {100 * float(hns(name, mean)):.1f} %"
            f" (random {published.random()[name]:g}, human {published.human()[name]:g})"
        )
        scores = published.atari_scores()
        lines.append(
            f"the paper at 100k steps: SPR {scores['spr'][name]:g}, PlayVirtual {scores['playvirtual'][name]:g}"
            + _shorter(config, 100_000)
        )
    for budget in published.DMC_BUDGETS:
        scores = published.dmc_scores(budget)
        if family == "dmc" and name in scores["playvirtual"]:
            spr, ours = scores["spr"][name], scores["playvirtual"][name]
            paper = f"the paper at {budget // 1000}k environment steps: SPR† {spr:g}, PlayVirtual {ours:g}"
            lines.append(paper + _shorter(config, budget))
    return "\n".join(lines)


def _shorter(config: Config, budget: int) -> str:
    """What to say of a run that has fewer steps than the paper's."""
    return "" if config.steps >= budget else f"; this run has {counted(config.steps, 'step')}"
