"""From the scores of runs to the matrices (runs, tasks) that `statistics` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from playvirtual import published
from playvirtual.errors import InputError, unknown
from playvirtual.published import hns as hns

FloatArray = npt.NDArray[np.float64]

DMC_SUITES = {"dmc100k": 100_000, "dmc500k": 500_000}  # environment steps
SUITES = ("atari100k", *DMC_SUITES)


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

    A task with more runs than another would weigh more, and an interval from too few would look like one
    from enough; so every task gives the same number of runs or the matrix is refused.
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
