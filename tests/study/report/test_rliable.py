"""The same numbers as rliable, the library that goes with the statistics' definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

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

REASON = "rliable is not installed (it needs pandas < 3)"
library = pytest.importorskip("rliable.library", reason=REASON, exc_type=ImportError)
metrics = pytest.importorskip("rliable.metrics", reason=REASON, exc_type=ImportError)

Aggregate = Callable[[npt.ArrayLike], FloatArray]

REPS = 4000
PAIRS = [
    (mean, metrics.aggregate_mean),
    (median, metrics.aggregate_median),
    (iqm, metrics.aggregate_iqm),
    (optimality_gap, metrics.aggregate_optimality_gap),
]
NAMES = ["mean", "median", "iqm", "optimality_gap"]
SHAPES = [(1, 1), (1, 26), (2, 3), (5, 26), (10, 7)]


@pytest.fixture(autouse=True)
def _seed_rliable() -> None:
    np.random.seed(0)  # rliable draws from NumPy's global generator whatever random state it is given


def draw(shape: tuple[int, ...], seed: int = 0) -> FloatArray:
    """Skewed scores with ties."""
    return np.round(np.random.default_rng(seed).lognormal(-0.5, 1.0, shape), 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=NAMES)
def test_aggregates_are_equal(ours: Aggregate, theirs: Aggregate, shape: tuple[int, int]) -> None:
    assert ours(draw(shape)) == theirs(draw(shape))


@pytest.mark.parametrize("runs", [1, 3, 10])
def test_probability_of_improvement_is_equal(runs: int) -> None:
    x, y = draw((runs, 26)), draw((5, 26), seed=1)
    assert probability_of_improvement(x, y) == metrics.probability_of_improvement(x, y)
    assert probability_of_improvement(x, x) == metrics.probability_of_improvement(x, x) == 0.5


def test_profiles_are_equal() -> None:
    thresholds = np.linspace(0, 3, 31)
    theirs = library.score_distributions(draw((10, 7)), thresholds)
    np.testing.assert_array_equal(performance_profile(draw((10, 7)), thresholds), theirs)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=NAMES)
def test_intervals_are_close(ours: Aggregate, theirs: Aggregate) -> None:
    scores = draw((5, 26))
    _, expected = library.get_interval_estimates({"x": scores}, lambda s: np.array([theirs(s)]), reps=REPS)
    assert_close_interval(bootstrap(ours, scores, reps=REPS), expected["x"][:, 0])


@pytest.mark.slow
def test_intervals_of_an_improvement_are_close() -> None:
    x, y = draw((5, 6)), draw((7, 6), seed=1)
    _, expected = library.get_interval_estimates(
        {"x": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=400
    )
    assert_close_interval(bootstrap(probability_of_improvement, x, y, reps=REPS), expected["x"][:, 0], rtol=0.1)


def test_intervals_of_a_profile_are_close() -> None:
    scores, thresholds = draw((5, 26)), np.array([0.2, 0.5, 1.0])
    _, expected = library.create_performance_profile({"x": scores}, thresholds, reps=2000)
    estimate = bootstrap(lambda s: performance_profile(s, thresholds), scores, reps=2000)
    np.testing.assert_allclose([estimate.low, estimate.high], expected["x"], atol=1.5 / scores.size)


@pytest.mark.slow
def test_sample_efficiency_and_its_intervals_are_close() -> None:
    curves = draw((5, 26, 3))
    points, expected = library.get_interval_estimates(
        {"x": curves}, lambda s: np.array([metrics.aggregate_iqm(s[..., i]) for i in range(3)]), reps=REPS
    )
    np.testing.assert_allclose(sample_efficiency(curves), points["x"], rtol=1e-14)  # summed in another order
    estimate = bootstrap(sample_efficiency, curves, reps=REPS)
    for point in range(3):
        assert_close_interval([values[point] for values in estimate], expected["x"][:, point])


def assert_close_interval(estimate: Sequence[FloatArray], expected: FloatArray, rtol: float = 0.05) -> None:
    """Both ends within `rtol` of the interval's width: the noise of finitely many repetitions."""
    _, low, high = estimate
    np.testing.assert_allclose([low, high], expected, atol=rtol * float(high - low))
