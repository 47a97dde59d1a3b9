"""Aggregates over runs and tasks, and how sure they are.

Every function takes scores of shape (…, runs, tasks), finite and with the same number of runs for every task
(`scores.matrix` makes such arrays and says what is missing), and works on all leading dimensions at once.
The definitions are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), and of its library rliable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.errors import InputError

FloatArray = npt.NDArray[np.float64]

RESAMPLED_AT_ONCE = 1 << 21  # numbers held in memory by one step of the bootstrap: 16 MB


class Estimate(NamedTuple):
    """A statistic and its interval, each of the statistic's shape."""

    point: FloatArray
    low: FloatArray
    high: FloatArray


def mean(scores: npt.ArrayLike) -> FloatArray:
    """The mean over tasks of the mean over runs: (…, runs, tasks) → (…)."""
    return np.asarray(_finite(scores).mean(axis=-2).mean(axis=-1))


def median(scores: npt.ArrayLike) -> FloatArray:
    """The median over tasks of the mean over runs: (…, runs, tasks) → (…)."""
    return np.asarray(np.median(_finite(scores).mean(axis=-2), axis=-1))


def iqm(scores: npt.ArrayLike) -> FloatArray:
    """The interquartile mean: of all runs of all tasks, the middle half: (…, runs, tasks) → (…)."""
    values = _finite(scores)
    pooled = values.reshape(*values.shape[:-2], -1)  # (…, runs · tasks)
    count = pooled.shape[-1]
    cut = count // 4
    parted = np.partition(pooled, (cut, count - cut - 1), axis=-1)
    return np.asarray(parted[..., cut : count - cut].mean(axis=-1))


def optimality_gap(scores: npt.ArrayLike, target: float = 1.0) -> FloatArray:
    """How far runs stay below `target` on average, surplus not counted: (…, runs, tasks) → (…)."""
    return np.asarray(target - np.minimum(_finite(scores), target).mean(axis=(-2, -1)))


def performance_profile(scores: npt.ArrayLike, thresholds: npt.ArrayLike) -> FloatArray:
    """The share of runs that score above each threshold τ: (…, runs, tasks), (T,) → (…, T)."""
    values = _finite(scores)
    taus = np.asarray(thresholds, dtype=np.float64)
    if taus.ndim != 1 or not taus.size:
        raise InputError(f"thresholds: shape {taus.shape}; allowed: a non-empty list")
    return np.stack([(values > tau).mean(axis=(-2, -1)) for tau in taus], axis=-1)


def probability_of_improvement(x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
    """The chance that a run of X beats one of Y on a task, ties half, averaged over tasks.

    Shapes (…, n, tasks), (…, m, tasks) → (…). For each task it is the Mann-Whitney U divided by n · m.
    """
    ours, theirs = _finite(x), _finite(y)
    if ours.shape[-1] != theirs.shape[-1]:
        raise InputError(f"scores: {ours.shape[-1]} tasks against {theirs.shape[-1]}; both need the same tasks")
    wins = np.zeros(np.broadcast_shapes(ours.shape[:-2], theirs.shape[:-2]) + ours.shape[-1:])  # (…, tasks)
    for run in range(ours.shape[-2]):
        one = ours[..., run : run + 1, :]  # (…, 1, tasks)
        wins += (one > theirs).sum(axis=-2) + 0.5 * (one == theirs).sum(axis=-2)
    return np.asarray((wins / (ours.shape[-2] * theirs.shape[-2])).mean(axis=-1))


def sample_efficiency(curves: npt.ArrayLike, aggregate: Callable[[npt.ArrayLike], FloatArray] = iqm) -> FloatArray:
    """The aggregate at each point of training: (…, runs, tasks, points) → (…, points)."""
    values = np.asarray(curves, dtype=np.float64)
    if values.ndim < 3:
        raise InputError(f"curves: shape {values.shape}; allowed: (runs, tasks, points)")
    return aggregate(np.moveaxis(values, -1, -3))


def bootstrap(
    statistic: Callable[..., FloatArray],
    *samples: npt.ArrayLike,
    reps: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """`statistic(*samples)` with its percentile interval under a stratified bootstrap.

    Each sample is (runs, tasks) or (runs, tasks, points). In each repetition every task draws as many runs as
    it has, with replacement, independently of the other tasks and samples; a run's curve is kept whole.
    `statistic` must take leading dimensions, as all functions of this module do. One run per task leaves
    nothing to draw from: the interval is then the point.
    """
    arrays = [_finite(sample) for sample in samples]
    _check_bootstrap(arrays, reps, confidence)
    rng = np.random.default_rng(seed)
    size = max(1, RESAMPLED_AT_ONCE // sum(array.size for array in arrays))
    replicas = np.concatenate(
        [
            statistic(*(_resample(array, min(size, reps - start), rng) for array in arrays))
            for start in range(0, reps, size)
        ]
    )  # (reps, …)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(replicas, (tail, 100.0 - tail), axis=0)
    return Estimate(np.asarray(statistic(*arrays)), np.asarray(low), np.asarray(high))


def _resample(scores: FloatArray, reps: int, rng: np.random.Generator) -> FloatArray:
    """(runs, tasks, …) → (reps, runs, tasks, …), the runs drawn anew within each task."""
    runs, tasks = scores.shape[:2]
    drawn = rng.integers(runs, size=(reps, runs, tasks))
    resampled: FloatArray = scores[drawn, np.arange(tasks)]
    return resampled


def _finite(scores: npt.ArrayLike) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim < 2 or not values.size:
        raise InputError(f"scores: shape {values.shape}; allowed: (runs, tasks), neither of them 0")
    if not np.isfinite(values).all():
        raise InputError("scores: some are not finite; every task needs the same number of finished runs")
    return values


def _check_bootstrap(arrays: list[FloatArray], reps: int, confidence: float) -> None:
    if not arrays:
        raise InputError("samples: none given; at least one is needed")
    if any(array.ndim not in (2, 3) for array in arrays):
        raise InputError("samples: allowed shapes are (runs, tasks) and (runs, tasks, points)")
    if reps < 1:
        raise InputError(f"reps: {reps}; allowed: 1 or more")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence: {confidence}; allowed: between 0 and 1")
