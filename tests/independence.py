"""Whether random numbers that should have nothing to do with each other have."""

import math

import torch
from torch import Tensor


def look_independent(rows: Tensor) -> bool:
    """R sequences of N draws (R, N): no two correlate, and none with itself one place on, beyond 5 deviations."""
    rows = rows.double()
    between = torch.corrcoef(rows).fill_diagonal_(0).abs().max()
    along = max(abs(float(torch.corrcoef(torch.stack([row[1:], row[:-1]]))[0, 1])) for row in rows)
    return max(float(between), along) < 5 / math.sqrt(rows.shape[1] - 1)
