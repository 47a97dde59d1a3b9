"""Prints how often `playvirtual` beats `spr` on MinAtar at the defaults, in each of three studies and in all of them.

    python results/noise-and-m/pooled.py

A run's score is the mean return of its last evaluation, from the returns.csv of the studies. Both runs of a pair are
of one study and one game, since the studies are of different versions; the intervals are those of reports, bootstrapped
within every game of every study.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from playvirtual.study.report.statistics import Estimate, bootstrap, probability_of_improvement

RESULTS = Path(__file__).parents[1]
STUDIES = ("minatar", "baselines", "noise-and-m")
DEFAULTS = ({"steps=20000"}, {"steps=20000", "eval_every=5000"})  # options that leave the agent's settings alone

Scores = npt.NDArray[np.float64]  # (runs, games)


def scores(study: str, method: str) -> Scores:
    """The last scores of a method at its defaults, a row for each seed."""
    returns: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (RESULTS / study / "returns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["method"] == method and set(row["options"].split()) in DEFAULTS:
                returns[row["seed"], row["task"]][int(row["step"])].append(float(row["return"]))
    seeds, games = (sorted({key[place] for key in returns}) for place in (0, 1))
    last = {key: steps[max(steps)] for key, steps in returns.items()}
    return np.array([[np.mean(last[seed, game]) for game in games] for seed in seeds])


def pooled(pairs: Sequence[tuple[Scores, Scores]]) -> Estimate:
    """The mean of the studies' probabilities, weighted by their runs; (playvirtual, spr) of each."""
    weights = [len(ours) for ours, _ in pairs]

    def statistic(*samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
        found = [probability_of_improvement(x, y) for x, y in zip(samples[::2], samples[1::2], strict=True)]
        return np.asarray(np.average(found, axis=0, weights=weights))

    return bootstrap(statistic, *(matrix for pair in pairs for matrix in pair))


def main() -> None:
    """Prints a line for each study and one for all."""
    pairs = {study: (scores(study, "playvirtual"), scores(study, "spr")) for study in STUDIES}
    for name, chosen in [*((study, [pair]) for study, pair in pairs.items()), ("all", list(pairs.values()))]:
        runs = sum(len(ours) for ours, _ in chosen)
        point, low, high = map(float, pooled(chosen))
        print(f"{name}: {chosen[0][0].shape[1]} × {runs} runs, {point:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
