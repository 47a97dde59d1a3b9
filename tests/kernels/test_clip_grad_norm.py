"""Norms are limited as PyTorch does it, part by part."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from playvirtual.kernels.adam import clip_grad_norm_by_group


@given(st.integers(0, 100), st.sampled_from([0.1, 1.0, 1e3]))
def test_every_part_is_clipped_like_a_whole_model(seed: int, limit: float) -> None:
    torch.manual_seed(seed)
    parts = {"a": nn.Linear(3, 2), "b": nn.Linear(4, 1, bias=False)}
    for part in parts.values():
        for p in part.parameters():
            p.grad = torch.randn_like(p)
    twins = {name: [nn.Parameter(p.detach().clone()) for p in part.parameters()] for name, part in parts.items()}
    for name, part in parts.items():
        for twin, p in zip(twins[name], part.parameters(), strict=True):
            assert p.grad is not None
            twin.grad = p.grad.clone()
    norms = clip_grad_norm_by_group(twins, limit)
    for name, part in parts.items():
        torch.testing.assert_close(norms[name], nn.utils.clip_grad_norm_(part.parameters(), limit))
        for twin, p in zip(twins[name], part.parameters(), strict=True):
            torch.testing.assert_close(twin.grad, p.grad)


def test_an_infinite_limit_leaves_gradients_as_they_are_even_infinite_ones() -> None:
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([1.0, -2.0, float("inf")])
    norms = clip_grad_norm_by_group({"part": [p]}, float("inf"))
    assert norms["part"] == float("inf")
    assert p.grad.tolist() == [1.0, -2.0, float("inf")]


def test_a_part_without_gradients_has_none_to_limit() -> None:
    learning, still = nn.Linear(2, 1), nn.Linear(2, 1)
    for p in learning.parameters():
        p.grad = torch.ones_like(p)
    norms = clip_grad_norm_by_group({"still": [*still.parameters()], "learning": [*learning.parameters()]}, 1.0)
    assert norms["still"] == 0
    assert norms["learning"].item() == pytest.approx(3**0.5)
    assert all(p.grad is None for p in still.parameters())
