"""C51's projection and loss against numbers worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.agents.losses import categorical_loss, project_distribution


def test_projection_by_hand() -> None:
    """Support −1, 0, 1. R = 0.5, γ^n = 0.5 moves the atoms to 0, 0.5, 1: half of the middle one's mass each way."""
    support = torch.tensor([-1.0, 0.0, 1.0])
    p = torch.tensor([[0.2, 0.4, 0.4]])
    out = project_distribution(torch.tensor([0.5]), torch.tensor([0.5]), p, support)
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.2 + 0.2, 0.2 + 0.4]]))


def test_projection_clips_at_the_ends_of_the_support() -> None:
    support = torch.tensor([-1.0, 0.0, 1.0])
    p = torch.full((2, 3), 1 / 3)
    out = project_distribution(torch.tensor([7.0, -7.0]), torch.tensor([1.0, 1.0]), p, support)
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


def test_after_a_terminal_only_the_return_counts() -> None:
    support = torch.linspace(-10, 10, 51)  # spacing 0.4
    p = torch.rand(1, 51).softmax(1)
    out = project_distribution(torch.tensor([0.1]), torch.tensor([0.0]), p, support)
    assert float(out[0, 25]) == pytest.approx(0.75, abs=1e-5)  # 0.1 lies a quarter of the way to the next atom
    assert float(out[0, 26]) == pytest.approx(0.25, abs=1e-5)


@given(st.floats(-15, 15), st.floats(0, 1), st.integers(0, 10_000))
def test_projection_keeps_mass_one_and_the_mean_where_nothing_is_clipped(
    ret: float, discount: float, seed: int
) -> None:
    support = torch.linspace(-10, 10, 51, dtype=torch.float64)
    p = torch.rand(1, 51, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = p / p.sum()
    returns = torch.tensor([ret], dtype=torch.float64)
    out = project_distribution(returns, torch.tensor([discount], dtype=torch.float64), p, support)
    assert float(out.sum()) == pytest.approx(1.0)
    assert (out >= 0).all()
    if abs(ret) + 10 * discount <= 10:
        assert float(out @ support) == pytest.approx(ret + discount * float(p @ support), abs=1e-9)


def test_loss_is_cross_entropy_and_priority_is_kl() -> None:
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    log_p = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    result = categorical_loss(log_p, target)
    torch.testing.assert_close(result.loss, torch.tensor([0.6931472, 1.3862944]))
    assert float(result.priority[0]) == pytest.approx(1e-6)  # KL 0, kept above 0 so that it can be drawn again
    assert float(result.priority[1]) == pytest.approx(1.3862944, abs=1e-4)  # log 4
