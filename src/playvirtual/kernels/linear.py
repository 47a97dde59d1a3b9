"""Linear layers of odd sizes, in which GPUs are slow at half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual import kernels

UNIT = 8  # tensor cores are fed so many numbers at a time


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """layer(x) of a linear layer, by `padded_linear` where that is faster."""
    assert isinstance(layer, nn.Linear)
    low = kernels.in_use() and x.is_cuda and torch.is_autocast_enabled(x.device.type)
    if low and (layer.in_features % UNIT or layer.out_features % UNIT):
        return padded_linear(x, layer.weight, layer.bias)
    y: Tensor = layer(x)
    return y


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(…, I), (O, I), (O,) -> (…, O): x · weightᵀ + bias, with zeros that make I and O multiples of `UNIT`."""
    outputs, inputs = weight.shape
    more = -inputs % UNIT, -outputs % UNIT
    y = F.linear(F.pad(x, (0, more[0])), F.pad(weight, (0, more[0], 0, more[1])), F.pad(bias, (0, more[1])))
    return y[..., :outputs]
