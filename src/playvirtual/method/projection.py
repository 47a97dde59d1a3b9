"""The metric spaces M in which predicted and observed states are compared."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.kernels.linear import linear

COLLAPSED = 0.001  # a spread below which all targets are alike; on MinAtar and toys agents that learn have 0.02 to 0.2


def cosine_distance(prediction: Tensor, target: Tensor, eps: float = 1e-3) -> Tensor:
    """‖p/‖p‖ − t/‖t‖‖² = 2 − 2·cos(p, t) over the last dimension; norms below ε count as ε."""
    p = F.normalize(prediction, dim=-1, eps=eps)
    t = F.normalize(target, dim=-1, eps=eps)
    return (p - t).square().sum(-1)


def spread(vectors: Tensor, eps: float = 1e-3) -> Tensor:
    """How far apart the directions of vectors (B, D) lie, (): half the mean `cosine_distance` over all pairs.

    It is the variance of v/‖v‖. 0: all are alike, as those of a representation that has collapsed to one point.
    """
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))  # a mean in bfloat16 has few digits
    directions = F.normalize(vectors, dim=-1, eps=eps)
    return (directions - directions.mean(0)).square().sum(-1).mean()


def squared_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference over the last dimension."""
    return (prediction - target).square().mean(-1)


def normalized_squared_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """`cosine_distance` with the mean over the last dimension in place of the sum."""
    return cosine_distance(prediction, target) / prediction.shape[-1]


# The distances by the names that configurations use.
DISTANCES = {
    "cosine": cosine_distance,
    "mse": squared_distance,
    "normalised-mse": normalized_squared_distance,
}


class ProjectionHead(nn.Module):
    """g or q of the continuous agents: two fully connected layers with a ReLU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, hidden)
        self.fc2 = nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:  # (…, D) -> (…, D)
        return linear(F.relu(linear(x, self.fc1)), self.fc2)
