"""What tests of kernels hold against their limits."""

import math
from collections.abc import Iterable


def worst(errors: Iterable[float]) -> float:
    """The largest error, or NaN if one is NaN: Python's max() passes over NaN unless it comes first."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)
