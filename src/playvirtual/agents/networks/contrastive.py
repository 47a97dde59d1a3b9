"""What CURL compares views of an observation by: a head on the encoder, and a bilinear similarity."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ContrastiveHead(nn.Module):
    """Two linear layers, each followed by a LayerNorm without weights; weights start uniform in [0, 1].

    So a layer's outputs are large and differ by little, and autocast's few digits would leave little of the difference.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden, elementwise_affine=False),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
            nn.LayerNorm(outputs, elementwise_affine=False),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, z: Tensor) -> Tensor:  # (N, …) -> (N, outputs)
        with torch.autocast(z.device.type, enabled=False):
            out: Tensor = self.layers(z.flatten(1).to(torch.get_default_dtype()))
        return out


class Bilinear(nn.Module):
    """The similarity qᵀ W k of every query with every key; W starts uniform in [0, 1]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, size))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # (N, D), (M, D) -> (N, M)
        # In autocast's few digits keys that differ by little would look alike.
        with torch.autocast(queries.device.type, enabled=False):
            dtype = self.weight.dtype
            return queries.to(dtype) @ self.weight @ keys.to(dtype).T
