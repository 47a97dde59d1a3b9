"""Linear layers of odd sizes: with zeros around, the same values and gradients."""

import pytest
import torch
from torch import Tensor, nn

from playvirtual.kernels.linear import linear, padded_linear


@pytest.mark.parametrize(("inputs", "outputs"), [(51, 16), (16, 50), (3, 1), (8, 8)])
def test_zeros_change_neither_values_nor_gradients(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(inputs, outputs), torch.randn(2, 5, inputs)
    upstream = torch.randn(2, 5, outputs)
    found: list[list[Tensor]] = []
    for padded in (False, True):
        layer.zero_grad()
        start = x.clone().requires_grad_()
        y = padded_linear(start, layer.weight, layer.bias) if padded else layer(start)
        y.backward(upstream)
        found.append([y.detach(), *(t.grad for t in (start, layer.weight, layer.bias) if t.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_elsewhere_it_is_the_layer_itself() -> None:
    layer, x = nn.Linear(5, 3), torch.randn(2, 5)
    assert torch.equal(linear(x, layer), layer(x))
