"""Aggregates worked out by hand, and the laws they obey on any data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from playvirtual.errors import InputError
from playvirtual.study.report import statistics
from playvirtual.study.report.statistics import (
    FloatArray,
    bootstrap,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    sample_efficiency,
)

Aggregate = Callable[[npt.ArrayLike], FloatArray]

AGGREGATES: list[Aggregate] = [mean, median, iqm, optimality_gap]

finite = st.floats(-1e6, 1e6, allow_subnormal=False)
score_matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=finite)


def ordinary(seed: int, runs: int = 10, tasks: int = 8) -> FloatArray:
    """Tasks of different difficulty with noisy runs."""
    rng = np.random.default_rng(seed)
    return rng.normal(rng.uniform(0, 1.5, tasks), 0.2, (runs, tasks))


# --- By hand ---

SCORES = np.array([[0.0, 1.0, 8.0, 2.0], [2.0, 1.0, 4.0, 6.0]])  # 2 runs, 4 tasks; task means 1, 1, 6, 4


def test_aggregates_by_hand() -> None:
    assert mean(SCORES) == 3.0
    assert median(SCORES) == 2.5
    assert iqm(SCORES) == 2.25  # 0 1 | 1 2 2 4 | 6 8
    assert optimality_gap(SCORES, target=2.0) == 0.5  # shortfalls 2, 1, 0, 0, 0, 1, 0, 0


def test_profile_by_hand_counts_strictly_above() -> None:
    np.testing.assert_array_equal(performance_profile(SCORES, [-1.0, 0.0, 2.0, 8.0]), [1.0, 0.875, 0.375, 0.0])


def test_probability_of_improvement_by_hand() -> None:
    x = [[1.0, 5.0], [3.0, 5.0]]
    y = [[2.0, 5.0], [0.0, 1.0], [1.0, 9.0]]
    # Task 1: 1 beats 0 and ties 1, 3 beats all: 4.5 of 6. Task 2: both tie 5, beat 1, lose to 9: 3 of 6.
    assert probability_of_improvement(x, y) == 0.625


def test_sample_efficiency_by_hand() -> None:
    curves = np.stack([SCORES, 10 * SCORES], axis=-1)  # (2, 4, 2)
    np.testing.assert_array_equal(sample_efficiency(curves), [2.25, 22.5])
    np.testing.assert_array_equal(sample_efficiency(curves, mean), [3.0, 30.0])


def test_bootstrap_of_two_runs_by_hand() -> None:
    # One task, runs 0 and 1: the mean of two draws is 0, ½ or 1 with chances ¼, ½, ¼.
    estimate = bootstrap(mean, [[0.0], [1.0]], confidence=0.4)
    assert (estimate.point, estimate.low, estimate.high) == (0.5, 0.5, 0.5)
    estimate = bootstrap(mean, [[0.0], [1.0]], confidence=0.6)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_bootstrap_draws_tasks_independently() -> None:
    # The two tasks differ by a constant: drawn together, their difference would have no spread.
    column = np.arange(10.0)
    estimate = bootstrap(lambda s: (s[..., 1] - s[..., 0]).mean(axis=-1), np.stack([column, column + 5], axis=1))
    assert estimate.point == 5.0
    assert estimate.low < 4.0
    assert estimate.high > 6.0


# --- Laws ---


@given(score_matrices)
def test_location_aggregates_lie_between_the_extremes(scores: FloatArray) -> None:
    slack = 1e-9 * (1.0 + np.abs(scores).max())
    for aggregate in (mean, median, iqm):
        assert scores.min() - slack <= aggregate(scores) <= scores.max() + slack


@given(score_matrices, st.integers(0, 2**32 - 1))
def test_order_of_runs_and_tasks_does_not_matter(scores: FloatArray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(scores[:, rng.permutation(scores.shape[1])], axis=0)  # runs within each task
    tolerance = 1e-9 * (1.0 + np.abs(scores).max())
    for aggregate in AGGREGATES:
        assert aggregate(shuffled) == pytest.approx(aggregate(scores), abs=tolerance)


@given(score_matrices, st.floats(-100, 100), st.floats(0.01, 100))
def test_location_aggregates_follow_shift_and_scale(scores: FloatArray, shift: float, scale: float) -> None:
    tolerance = 1e-9 * (1.0 + scale * np.abs(scores).max() + abs(shift))
    for aggregate in (mean, median, iqm):
        moved = aggregate(scale * scores + shift)
        assert moved == pytest.approx(float(scale * aggregate(scores) + shift), abs=tolerance)


@given(score_matrices, st.lists(finite, min_size=1, max_size=10))
def test_profile_falls_from_one_to_zero(scores: FloatArray, thresholds: list[float]) -> None:
    profile = performance_profile(scores, [-1e7, *sorted(thresholds), 1e6])
    assert profile[0] == 1.0
    assert profile[-1] == 0.0
    assert (np.diff(profile) <= 0).all()


@given(score_matrices)
def test_nothing_improves_on_itself(scores: FloatArray) -> None:
    assert probability_of_improvement(scores, scores) == pytest.approx(0.5, abs=1e-12)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
def test_improvement_and_its_reverse_add_to_one(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, (n, 3)), rng.integers(0, 4, (m, 3))  # few values: many ties
    both = probability_of_improvement(x, y) + probability_of_improvement(y, x)
    assert both == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_leading_dimensions_are_separate_problems(aggregate: Aggregate) -> None:
    batch = np.stack([ordinary(seed) for seed in range(6)]).reshape(2, 3, 10, 8)
    separate = [[aggregate(batch[i, j]) for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(aggregate(batch), separate)


# --- Bootstrap ---


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_interval_contains_the_point(aggregate: Aggregate, seed: int) -> None:
    point, low, high = bootstrap(aggregate, ordinary(seed), reps=500, seed=seed)
    assert low < point < high


def test_what_is_not_said_is_2000_repetitions_and_95_percent() -> None:
    scores = ordinary(0)
    assert bootstrap(iqm, scores) == bootstrap(iqm, scores, reps=2000, confidence=0.95, seed=0)
    assert bootstrap(iqm, scores) != bootstrap(iqm, scores, reps=1999)


def test_two_samples_are_drawn_independently_of_each_other() -> None:
    # Of the same runs: drawn together, the difference of the means would have no spread.
    scores = ordinary(0)
    estimate = bootstrap(lambda x, y: mean(x) - mean(y), scores, scores, reps=200)
    assert estimate.point == 0.0
    assert estimate.low < 0.0 < estimate.high


def test_seed_decides_the_interval() -> None:
    scores = ordinary(0)
    intervals = [bootstrap(iqm, scores, reps=200, seed=seed) for seed in (0, 0, 1)]
    assert intervals[0] == intervals[1]
    assert intervals[0] != intervals[2]


def test_constant_data_has_no_width() -> None:
    estimate = bootstrap(iqm, np.full((5, 3), 0.25), reps=100)
    assert (estimate.point, estimate.low, estimate.high) == (0.25, 0.25, 0.25)


def test_interval_of_the_mean_is_as_wide_as_theory_says() -> None:
    scores = np.random.default_rng(0).normal(size=(50, 20))
    estimate = bootstrap(mean, scores, reps=4000)
    standard_error = np.sqrt(scores.var(axis=0).mean() / scores.size)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * standard_error, rel=0.05)


def test_bootstrap_in_small_steps_is_the_same_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = ordinary(0)
    at_once = bootstrap(mean, scores, reps=4000)
    monkeypatch.setattr(statistics, "RESAMPLED_AT_ONCE", 7 * scores.size)
    in_steps = bootstrap(mean, scores, reps=4000)
    np.testing.assert_allclose(in_steps, at_once, atol=0.01)


def test_profiles_curves_and_comparisons_have_intervals_too() -> None:
    x, y = ordinary(0), ordinary(1, runs=6) - 0.2
    profile = bootstrap(lambda s: performance_profile(s, [0.0, 0.5, 1.0]), x, reps=200)
    assert profile.low.shape == profile.high.shape == (3,)
    assert (profile.low <= profile.point).all()

    curves = np.stack([x - 0.5, x, x + 0.5], axis=-1)
    efficiency = bootstrap(sample_efficiency, curves, reps=200)
    np.testing.assert_allclose(efficiency.low[1:] - efficiency.low[:-1], 0.5)  # a run's curve is kept whole

    point, low, high = bootstrap(probability_of_improvement, x, y, reps=200)
    assert 0 < low < point < high < 1


# --- Bad input ---


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_unfinished_or_misshapen_scores_are_refused(aggregate: Aggregate) -> None:
    with pytest.raises(InputError, match="not finite"):
        aggregate([[1.0, np.nan], [1.0, 2.0]])
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        aggregate([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"shape \(0, 4\)"):
        aggregate(np.empty((0, 4)))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match="2 tasks against 3"):
        probability_of_improvement(np.ones((4, 2)), np.ones((4, 3)))
    with pytest.raises(InputError, match="reps: 0"):
        bootstrap(mean, SCORES, reps=0)
    with pytest.raises(InputError, match=r"confidence: 95"):
        bootstrap(mean, SCORES, confidence=95)
    with pytest.raises(InputError, match="samples: none"):
        bootstrap(mean)
    with pytest.raises(InputError, match="samples: allowed shapes"):
        bootstrap(mean, np.ones((2, 2, 2, 2)))
    with pytest.raises(InputError, match="thresholds"):
        performance_profile(SCORES, [])
    with pytest.raises(InputError, match=r"curves: shape \(2, 4\)"):
        sample_efficiency(SCORES)
