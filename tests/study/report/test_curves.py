"""The band of a learning curve."""

from __future__ import annotations

import pytest

from playvirtual.study.report.curves import standard_error_band


def test_the_band_is_mean_and_standard_error() -> None:
    # 9 caught, 1 missed: mean 0.8, standard deviation √(1 − 0.64) = 0.6, standard error 0.6 / √10
    assert standard_error_band([1.0] * 9 + [-1.0]) == pytest.approx((0.8 - 0.18974, 0.8 + 0.18974), abs=1e-5)


@pytest.mark.parametrize("caught", range(11))
def test_the_band_of_games_won_or_lost_holds_the_mean_and_stays_in_their_range(caught: int) -> None:
    low, high = standard_error_band([1.0] * caught + [-1.0] * (10 - caught))
    assert -1.0 - 1e-9 <= low <= (2 * caught - 10) / 10 <= high <= 1.0 + 1e-9
