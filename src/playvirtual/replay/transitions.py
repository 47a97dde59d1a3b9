"""The batches of the continuous agent: single transitions for SAC, sequences for the auxiliary objective."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playvirtual.replay.buffer import Replay


class Transitions(NamedTuple):
    """B single steps, drawn uniformly."""

    observations: Tensor  # (B, C, H, W) uint8: s_t
    actions: Tensor  # (B, A): a_t
    rewards: Tensor  # (B,): r_t
    discounts: Tensor  # (B,): γ, or 0 after a terminal
    next_observations: Tensor  # (B, C, H, W) uint8: s_{t+1}; after a terminal whatever comes next
    positions: Tensor | None = None  # (B,) where in the ring they lie, for the record


class Windows(NamedTuple):
    """B sequences of K + 1 observations, each within one episode, drawn uniformly."""

    observations: Tensor  # (B, K+1, C, H, W) uint8: s_t … s_{t+K}
    actions: Tensor  # (B, K, A): a_t … a_{t+K−1}
    valid: Tensor  # (B,) float: 0 as long as the replay holds no such sequence at all
    positions: Tensor | None = None  # (B,) where in the ring they start, for the record


class Experience(NamedTuple):
    """What one update of the continuous agent learns from."""

    transitions: Transitions
    windows: Windows | None  # None without an auxiliary objective (K = 0)


def transitions_at(replay: Replay, index: Tensor, *, gamma: float) -> Transitions:
    """The single steps at ring positions `index` (B,); a time limit bootstraps from the frame it left."""
    after = torch.remainder(index + 1, replay.capacity)
    return Transitions(
        observations=replay.observations(index),
        actions=replay.actions[index],
        rewards=replay.rewards[index],
        discounts=gamma * (~replay.terminals[index]).to(torch.get_default_dtype()),
        next_observations=replay.observations(after),
        positions=index,
    )


def windows_at(replay: Replay, index: Tensor, valid: Tensor, *, K: int) -> Windows:
    """The sequences that start at ring positions `index` (B,), of which `valid` (B,) are within one episode."""
    ahead = replay.ahead(index, K + 1)  # (B, K+1)
    return Windows(
        observations=replay.observations(ahead),
        actions=replay.actions[ahead[:, :K]],
        valid=valid.to(torch.get_default_dtype()),
        positions=index,
    )
