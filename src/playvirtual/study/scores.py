"""Scores: matrices (runs, tasks) for statistics, and a run's score as text beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from playvirtual import published
from playvirtual.config.schema import Config
from playvirtual.errors import InputError, unknown
from playvirtual.messages import counted
from playvirtual.published import hns as hns

FloatArray = npt.NDArray[np.float64]

DMC_SUITES = {"dmc100k": 100_000, "dmc500k": 500_000}  # environment steps
SUITES = ("atari100k", *DMC_SUITES)

# The columns of the paper's tables whose methods can be run here, by their names in published/.
PAPER_BASELINES = {"der": "DER", "otr": "OTRainbow", "sac_ae": "SAC+AE", "curl": "CURL", "drq": "DrQ"}
PAPER_METHODS = {"spr": "SPR", "playvirtual": "PlayVirtual"}


def name_in_paper(method: str) -> str:
    """What published/ calls a method here."""
    return method.replace("-", "_")


def suite_tasks(suite: str) -> tuple[str, ...]:
    """The tasks of a suite of the paper, in its order: the columns of the suite's matrices."""
    if suite == "atari100k":
        return tuple(published.human())
    return tuple(published.dmc_scores(_dmc_env_steps(suite))["playvirtual"])


def suite_matrix(suite: str, scores: Mapping[str, Sequence[float]], runs: int | None = None) -> FloatArray:
    """Task → scores of its runs as (runs, tasks) of a whole suite: HNS for Atari, returns for DMControl."""
    tasks = suite_tasks(suite)
    if suite != "atari100k":
        return matrix(scores, tasks, runs)
    return matrix({game: hns(game, values).tolist() for game, values in scores.items()}, tasks, runs)


def published_matrix(suite: str, method: str) -> FloatArray:
    """(1, tasks): the paper's mean scores of `method`, as `suite_matrix` gives them for runs.

    Their mean and median are the method's; their IQM is over tasks alone, not the one over its runs.
    """
    table = published.atari_scores() if suite == "atari100k" else published.dmc_scores(_dmc_env_steps(suite))
    if method not in table:
        raise unknown("method", method, table)
    return suite_matrix(suite, {task: [score] for task, score in table[method].items()})


def matrix(scores: Mapping[str, Sequence[float]], tasks: Sequence[str], runs: int | None = None) -> FloatArray:
    """(runs, tasks), a column per task of `tasks`: its first `runs` scores, by default all it has.

    Every task must have the same number of runs: a task with more would weigh more, and an interval from too few
    runs would look like one from enough.
    """
    if not tasks:
        raise InputError("tasks: none given; at least one is needed")
    counts = {task: len(scores.get(task, ())) for task in tasks}
    fewest = min(counts, key=counts.__getitem__)
    most = max(counts, key=counts.__getitem__)
    if not counts[fewest]:
        raise InputError(f"scores: {fewest} has no run; every task needs at least one")
    if runs is None and counts[fewest] != counts[most]:
        raise InputError(
            f"scores: {fewest} has {counts[fewest]} runs and {most} has {counts[most]}; every task needs the "
            f"same number: add the missing ones or use the first {counts[fewest]} of each"
        )
    wanted = counts[fewest] if runs is None else runs
    if not 1 <= wanted <= counts[fewest]:
        raise InputError(f"runs: {wanted}; allowed: 1 to {counts[fewest]}, which is what {fewest} has")
    return np.array([list(scores[task])[:wanted] for task in tasks], dtype=np.float64).T


def _dmc_env_steps(suite: str) -> int:
    if suite not in DMC_SUITES:
        raise unknown("suite", suite, SUITES)
    return DMC_SUITES[suite]


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
        lines.append("the paper at 100k steps: " + _paper_scores(config, published.atari_scores(), "SPR", 100_000))
    for budget in published.DMC_BUDGETS:
        scores = published.dmc_scores(budget)
        if family == "dmc" and name in scores["playvirtual"]:
            # SPR† is SPR on SAC as the paper's authors ran it.
            printed = _paper_scores(config, scores, "SPR†", budget)
            lines.append(f"the paper at {budget // 1000}k environment steps: {printed}")
    return "\n".join(lines)


def _paper_scores(config: Config, scores: published.Table, spr: str, budget: int) -> str:
    """The paper's scores on the run's task, that of its own method first, and a note on a run with fewer steps."""
    own, task = name_in_paper(config.method), config.task.partition("/")[2]
    titles = {own: PAPER_BASELINES[own]} if own in PAPER_BASELINES and own in scores else {}
    titles |= {**PAPER_METHODS, "spr": spr}
    shorter = "" if config.steps >= budget else f"; this run has {counted(config.steps, 'step')}"
    return ", ".join(f"{title} {scores[name][task]:g}" for name, title in titles.items()) + shorter
