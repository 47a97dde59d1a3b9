"""The batch of the discrete agent: prioritised sequences of K + 1 observations with their n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playvirtual.replay.buffer import Replay
from playvirtual.replay.returns import n_step


class Sequences(NamedTuple):
    """B sequences that start at time t, on the training device."""

    positions: Tensor  # (B,) ring positions, to give priorities back to
    weight: Tensor  # (B,) importance weights
    observations: Tensor  # (B, K+1, C, H, W) uint8: s_t … s_{t+K}
    actions: Tensor  # (B, max(K, 1)): a_t … a_{t+K−1}
    alive: Tensor  # (B, K+1) float: 1 until the first terminal among t … t+k
    returns: Tensor  # (B,) n-step return
    discounts: Tensor  # (B,) γ^m, 0 after a terminal
    next_observations: Tensor  # (B, C, H, W) uint8: s_{t+m}


def sequences_at(replay: Replay, index: Tensor, weight: Tensor, *, K: int, n: int, gamma: float) -> Sequences:
    """The batch that starts at ring positions `index` (B,), without waiting for the device.

    There must be max(K, n) entries of room ahead of every start.
    """
    ahead = replay.ahead(index, K + 1)  # (B, K+1)
    # As the released code does, the state in which a terminal action is taken counts as gone too.
    alive = (replay.episodes[ahead] == replay.episodes[index][:, None]) & ~replay.terminals[ahead]
    window = replay.ahead(index, n)
    target = n_step(
        replay.rewards[window], replay.terminals[window], replay.acted[window], replay.episodes[window], gamma
    )
    return Sequences(
        positions=index,
        weight=weight,
        observations=replay.observations(ahead),
        actions=replay.actions[ahead[:, : max(K, 1)]],
        alive=alive.to(torch.get_default_dtype()),
        returns=target.returns,
        discounts=target.discounts,
        next_observations=replay.observations(torch.remainder(index + target.steps, replay.capacity)),
    )
