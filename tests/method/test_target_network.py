"""Target networks follow their online networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from playvirtual.method.target_network import make_target, soft_update


def network() -> nn.Module:
    """With parameters and, in BatchNorm's statistics, buffers."""
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("tau", [0.0, 0.1, 0.75, 1.0])
def test_a_target_takes_tau_of_every_parameter_and_all_of_every_buffer(tau: float) -> None:
    torch.manual_seed(0)
    online, target = network(), make_target(network())
    for buffer in online.buffers():
        buffer.add_(3)
    before = [p.clone() for p in target.parameters()]
    kept = [p.detach().clone() for p in online.parameters()]
    soft_update(target, online, tau)
    for old, new, taken in zip(before, target.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(new, (1 - tau) * old + tau * taken)
    for mine, theirs in zip(target.buffers(), online.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    assert all(torch.equal(p, old) for p, old in zip(online.parameters(), kept, strict=True))


def test_a_target_starts_as_a_copy_of_its_own_without_gradients() -> None:
    online = network()
    target = make_target(online)
    for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
        assert not mine.requires_grad
        assert theirs.requires_grad
