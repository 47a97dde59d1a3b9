"""Drawing in proportion to priorities, and what the importance weights undo."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import Priorities, Replay, search
from tests.replay.storing import store


def test_frequencies_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    draws = search(weights, 80_000, torch.Generator().manual_seed(0))
    shares = torch.bincount(draws, minlength=6) / 80_000
    torch.testing.assert_close(shares, weights / weights.sum(), atol=0.008, rtol=0)  # > 4 standard deviations


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-6, 1.0, 1e6]), min_size=1, max_size=50), st.integers(0, 1000))
def test_weight_zero_is_never_drawn(values: list[float], seed: int) -> None:
    weights = torch.tensor([*values, 1.0, 0.0])
    drawn = search(weights, 64, torch.Generator().manual_seed(seed))
    assert (weights[drawn] > 0).all()


def test_a_small_priority_among_many_large_ones_is_not_lost() -> None:
    """Beyond 2²⁴ a running sum in float32 leaves out every other 1; here all of them have their share."""
    weights = torch.cat([torch.tensor([2.0**24]), torch.ones(200_000)])
    left_out = torch.cat([torch.tensor([False]), weights.double().cumsum(0).float().diff() == 0])
    assert left_out.sum() > 90_000
    drawn = search(weights, 1_000_000, torch.Generator().manual_seed(0))
    share = float(left_out[drawn].float().mean())
    expected = float(left_out.sum() / weights.sum())
    assert abs(share - expected) < 0.1 * expected  # over 7 standard deviations


def filled(priority: list[float], alpha: float) -> Priorities:
    replay = Replay(len(priority) + 1, (1, 1, 1), 1, None)
    priorities = Priorities(replay, alpha, span=1)
    for _ in range(len(priority) + 1):
        store(replay, np.zeros((1, 1, 1), np.uint8), 0, 0.0, terminal=False)
    priorities.follow()
    priorities.update(torch.arange(len(priority)), torch.tensor(priority))
    return priorities


def test_priorities_are_raised_to_alpha() -> None:
    priorities = filled([1.0, 4.0, 16.0], alpha=0.5)
    index, _ = priorities.sample(70_000, torch.tensor(0.4), torch.Generator().manual_seed(0))
    shares = torch.bincount(index, minlength=4) / 70_000
    torch.testing.assert_close(shares, torch.tensor([1 / 7, 2 / 7, 4 / 7, 0.0]), atol=0.01, rtol=0)


def test_importance_weights_by_hand() -> None:
    """p^α = 1, 2, 4: with β = 1 the weights are 1/p relative to the largest in the batch; with β = 0 all 1."""
    priorities = filled([1.0, 4.0, 16.0], alpha=0.5)
    generator = torch.Generator().manual_seed(1)
    index, weight = priorities.sample(200, torch.tensor(1.0), generator)
    expected = torch.tensor([1.0, 0.5, 0.25])[index]
    torch.testing.assert_close(weight, expected, atol=1e-4, rtol=0)
    _, flat = priorities.sample(200, torch.tensor(0.0), generator)
    assert flat.tolist() == [1.0] * 200


def test_full_correction_makes_the_estimate_unbiased() -> None:
    """Σ w·x / Σ w over prioritised draws with β = 1 is the plain mean of x."""
    priorities = filled([0.1, 1.0, 5.0, 10.0], alpha=0.5)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    index, weight = priorities.sample(100_000, torch.tensor(1.0), torch.Generator().manual_seed(2))
    assert float((weight * x[index]).sum() / weight.sum()) == pytest.approx(2.5, abs=0.03)
