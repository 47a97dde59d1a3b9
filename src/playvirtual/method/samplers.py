"""Where virtual actions come from: samplers that see the action space, the recorded actions, the state and a policy."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from playvirtual.method.actions import ActionSpace

if TYPE_CHECKING:
    from playvirtual.method.dynamics import Dynamics


def check_nonnegative(name: str, value: Any) -> None:
    """Raises a ValueError unless the value is a finite number from 0 on."""
    if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name}: {value!r} is not allowed; allowed: finite numbers from 0 on")


def check_whole(name: str, value: Any, low: int) -> None:
    """Raises a ValueError unless the value is a whole number from `low` on."""
    if not isinstance(value, Integral) or int(value) < low:
        raise ValueError(f"{name}: {value!r} is not allowed; allowed: whole numbers from {low} on")


class SamplerInput(NamedTuple):
    """What a sampler of virtual actions may look at."""

    action_space: ActionSpace
    batch_size: int  # B
    M: int  # virtual trajectories per sample
    K: int  # steps of each
    device: torch.device
    generator: torch.Generator | None  # the only source of random numbers, so that a seed decides the run
    recorded: Tensor | None  # (B, K, …a): the actions that were taken from the samples' states on
    z: Tensor | None  # (B, …): z_t without gradient; None for a sampler that does not see the state
    forward: Dynamics  # h, for a sampler that chooses step by step: z = forward(z, a)
    policy: PolicyFunction | None  # what the agent would do in latent states; None where it acts on more than those


class PolicyFunction(Protocol):
    """(N, …) latent states -> (N, …a): the actions that the agent would take there, without exploration."""

    def __call__(self, z: Tensor, /) -> Tensor: ...


class Sampler(Protocol):
    """Draws virtual actions.

    With `sees_state` it is called once z is encoded and `SamplerInput.z` is there. Without it, all random numbers of an
    update are drawn before, outside of what is compiled, which is faster.
    """

    sees_state: bool

    def __call__(self, seen: SamplerInput, /) -> Tensor:
        """(B, M, K, …a): an action for every step of every virtual trajectory, without waiting for the device."""
        ...


def checked_sampler(sampler: Sampler) -> Sampler:
    """The same sampler; raises a TypeError for a class, and for what does not say whether it sees the state."""
    if isinstance(sampler, type) or not callable(sampler) or not hasattr(sampler, "sees_state"):
        raise TypeError(
            f"sampler: {sampler!r} is not allowed; allowed: what is called with a SamplerInput and has `sees_state`, "
            "True or False"
        )
    return sampler


class Uniform:
    """The paper's default: every action is an independent uniform draw from the action space."""

    sees_state = False

    def __init__(self, sigma: float = 0.0) -> None:
        """`sigma` is not used: a uniform draw has no scale."""

    def __call__(self, seen: SamplerInput) -> Tensor:
        return seen.action_space.uniform((seen.batch_size, seen.M, seen.K), seen.generator, seen.device)


class Perturbed:
    """The recorded actions with noise of scale σ, drawn anew for each of the M trajectories."""

    sees_state = False

    def __init__(self, sigma: float = 0.05) -> None:
        check_nonnegative("sigma", sigma)
        self.sigma = float(sigma)

    def __call__(self, seen: SamplerInput) -> Tensor:
        if seen.recorded is None:
            raise ValueError("recorded: None is not allowed with perturbed actions; allowed: the actions (B, K, …)")
        recorded = seen.recorded[:, None].expand(-1, seen.M, *seen.recorded.shape[1:])
        return seen.action_space.perturb(recorded, self.sigma, seen.generator)
