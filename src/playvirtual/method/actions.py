"""The action spaces that the method knows: how their actions are drawn, perturbed and encoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DiscreteActions:
    """The actions 0 … n−1, held as int64 tensors."""

    n: int

    @property
    def size(self) -> int:
        """Length of an encoded action."""
        return self.n

    def uniform(self, shape: tuple[int, ...], generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Independent uniform draws from the whole space."""
        return torch.randint(self.n, shape, generator=generator, device=device)

    def perturb(self, actions: Tensor, sigma: float | Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Each action is replaced, with probability σ, by a uniform draw (which may be the same action).

        The paper perturbs continuous actions only; this is the discrete counterpart: σ = 0 gives the recorded
        actions, σ = 1 uniform ones.
        """
        shape = tuple(actions.shape)
        draws = self.uniform(shape, generator, actions.device)
        replaced = torch.rand(shape, generator=generator, device=actions.device) < sigma
        return torch.where(replaced, draws, actions)

    def encode(self, actions: Tensor) -> Tensor:
        """One-hot vectors: (…) -> (…, n)."""
        return F.one_hot(actions, self.n).to(torch.get_default_dtype())


@dataclass(frozen=True)
class BoxActions:
    """Vectors between `low` and `high`, bound by bound."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Length of an encoded action."""
        return len(self.low)

    def _bounds(self, device: Any) -> tuple[Tensor, Tensor]:
        return _bounds(self.low, self.high, torch.device(device or "cpu"), torch.get_default_dtype())

    def uniform(self, shape: tuple[int, ...], generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Independent uniform draws from the whole box: (…shape, A)."""
        low, high = self._bounds(device)
        return low + (high - low) * torch.rand((*shape, self.size), generator=generator, device=device)

    def perturb(self, actions: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
        """Gaussian noise N(0, σ) on each component, clipped to the box."""
        low, high = self._bounds(actions.device)
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        return torch.clamp(actions + sigma * noise, low, high)

    def encode(self, actions: Tensor) -> Tensor:
        """The vectors themselves."""
        return actions


@cache
def _bounds(
    low: tuple[float, ...], high: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    # Kept, since a copy from the host would make every draw wait for the device.
    return torch.tensor(low, device=device, dtype=dtype), torch.tensor(high, device=device, dtype=dtype)


ActionSpace = DiscreteActions | BoxActions


def action_space(space: Any) -> ActionSpace:
    """Takes what people have: a number of actions, a Gymnasium Discrete or Box, or one of the two above."""
    if isinstance(space, DiscreteActions | BoxActions):
        return space
    n = space if isinstance(space, Integral) else getattr(space, "n", None)
    if isinstance(n, Integral) and getattr(space, "shape", ()) == () and getattr(space, "start", 0) == 0 and int(n) > 0:
        return DiscreteActions(int(n))
    if hasattr(space, "low") and hasattr(space, "high") and len(space.shape) == 1:
        low, high = tuple(map(float, space.low)), tuple(map(float, space.high))
        if all(math.isfinite(bound) for bound in low + high):  # between infinite ones nothing can be drawn uniformly
            return BoxActions(low, high)
    allowed = "a number of actions, a discrete space that begins with 0, or a flat box with finite bounds"
    raise TypeError(f"actions: {space!r} is not known; allowed: {allowed}")
