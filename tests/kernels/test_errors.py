"""No limit lets a NaN pass."""

from math import isnan, nan

from tests.kernels.errors import worst


def test_nan_is_the_worst_error_wherever_it_stands() -> None:
    assert worst([0.1, 0.3, 0.2]) == 0.3
    assert all(isnan(worst(errors)) for errors in ([nan, 0.1], [0.1, nan], [0.1, nan, 0.3]))
