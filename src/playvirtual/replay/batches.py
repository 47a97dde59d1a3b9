"""The batches that agents learn from, and the functions that read them from the replay buffer by position.

Shapes: B samples, K steps of prediction, observations (C, H, W) of uint8; t is the time at which a sample starts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playvirtual.replay.buffer import ReplayBuffer


class SequenceBatch(NamedTuple):
    """B recorded sequences of K steps: what the auxiliary objective of every agent learns from."""

    positions: Tensor  # (B,) where in the replay buffer the sequences start
    observations: Tensor  # (B, K+1, C, H, W): s_t … s_{t+K}
    actions: Tensor  # (B, max(K, 1), …a): a_t … a_{t+K−1}
    mask: Tensor  # (B, K+1) float: 1 where the k-th state counts in the losses, else 0


class JoinedObservations(NamedTuple):
    """All observations of a batch as they lie in memory, one after the other, and the batch's fields, views of them."""

    images: Tensor  # (B·(K+1) + B, C, H, W): s_t … s_{t+K} of all samples, then s_{t+m}
    observations: Tensor  # (B, K+1, C, H, W)
    next_observations: Tensor  # (B, C, H, W)


class RainbowBatch(NamedTuple):
    """B sequences with their n-step returns and importance weights."""

    sequences: SequenceBatch
    weights: Tensor  # (B,) importance weights
    returns: Tensor  # (B,) n-step return
    discounts: Tensor  # (B,) γ^m, or 0 after termination
    next_observations: Tensor  # (B, C, H, W): s_{t+m}
    joined: JoinedObservations | None = None  # None for a batch that was put together by hand

    def images(self) -> Tensor | None:
        """(B·(K+1) + B, C, H, W): `sequences.observations`, then `next_observations`, where they lie so in memory.

        None where they do not, or no longer: one of them is another tensor than the one that was read.
        """
        joined = self.joined
        if joined is None or joined.observations is not self.sequences.observations:
            return None
        return joined.images if joined.next_observations is self.next_observations else None


class TransitionBatch(NamedTuple):
    """B single transitions."""

    positions: Tensor  # (B,) where in the replay buffer they are
    observations: Tensor  # (B, C, H, W): s_t
    actions: Tensor  # (B, A): a_t
    rewards: Tensor  # (B,): r_t
    discounts: Tensor  # (B,): γ, or 0 after termination
    next_observations: Tensor  # (B, C, H, W): s_{t+1}; after termination the next episode's first observation


class SacBatch(NamedTuple):
    """Transitions for actor and critic, sequences for the auxiliary objective."""

    transitions: TransitionBatch
    sequences: SequenceBatch | None  # None without an auxiliary objective (K = 0)


def rainbow_batch(
    replay: ReplayBuffer,
    index: Tensor,
    weights: Tensor,
    *,
    K: int,
    n_step: int,
    gamma: float | Tensor,
    horizon: Tensor | None = None,
) -> RainbowBatch:
    """The batch that starts at positions `index` (B,), each with max(K, n_step) entries after it.

    The mask is 0 from the first state on in which a terminating action is taken, as in the released code. With a
    `horizon` () returns sum so many rewards, of the n_step that are read.
    """
    positions = replay.sequence_positions(index, K + 1)  # (B, K+1)
    mask = (replay.episodes[positions] == replay.episodes[index][:, None]) & ~replay.terminated[positions]
    steps = replay.sequence_positions(index, n_step)  # (B, n)
    target = n_step_return(
        replay.rewards[steps],
        replay.terminated[steps],
        replay.has_action[steps],
        replay.episodes[steps],
        gamma,
        horizon,
    )
    after = torch.remainder(index + target.steps, replay.capacity)  # (B,): of s_{t+m}
    images = replay.observations(torch.cat([positions.flatten(), after]))
    observations = images[: positions.numel()].unflatten(0, positions.shape)
    next_observations = images[positions.numel() :]
    return RainbowBatch(
        sequences=_read_sequences(replay, index, positions, observations, mask.to(torch.get_default_dtype())),
        weights=weights,
        returns=target.returns,
        discounts=target.discounts,
        next_observations=next_observations,
        joined=JoinedObservations(images, observations, next_observations),
    )


def transition_batch(replay: ReplayBuffer, index: Tensor, *, gamma: float) -> TransitionBatch:
    """The transitions at positions `index` (B,); a truncated episode bootstraps from its last frame."""
    return TransitionBatch(
        positions=index,
        observations=replay.observations(index),
        actions=replay.actions[index],
        rewards=replay.rewards[index],
        discounts=gamma * (~replay.terminated[index]).to(torch.get_default_dtype()),
        next_observations=replay.observations(torch.remainder(index + 1, replay.capacity)),
    )


def sequence_batch(replay: ReplayBuffer, index: Tensor, valid: Tensor, *, K: int) -> SequenceBatch:
    """The sequences that start at positions `index` (B,); the mask is 0 where `valid` (B,) is False."""
    mask = valid.to(torch.get_default_dtype())[:, None].expand(-1, K + 1)
    positions = replay.sequence_positions(index, K + 1)
    return _read_sequences(replay, index, positions, replay.observations(positions), mask)


def _read_sequences(
    replay: ReplayBuffer, index: Tensor, positions: Tensor, observations: Tensor, mask: Tensor
) -> SequenceBatch:
    """The sequences that start at `index` (B,) and lie at `positions` (B, K+1), with what was read there and a mask."""
    K = positions.shape[1] - 1
    return SequenceBatch(
        positions=index,
        observations=observations,
        actions=replay.actions[positions[:, : max(K, 1)]],
        mask=mask,
    )


class NStepReturn(NamedTuple):
    """R = Σ_{i<m} γ^i r_{t+i}, to which discount · V(s_{t+m}) is added."""

    returns: Tensor  # (B,)
    steps: Tensor  # (B,) m: n, or fewer where the episode ends before
    discounts: Tensor  # (B,) γ^m, or 0 after termination


def n_step_return(
    rewards: Tensor,  # (B, n), as the next three
    terminated: Tensor,
    has_action: Tensor,
    episodes: Tensor,
    gamma: float | Tensor,  # or ()
    horizon: Tensor | None = None,  # (): 1 to n
) -> NStepReturn:
    """The return of the steps t … t+n−1 as far as they belong to the episode of t; with a `horizon`, that is n."""
    counts = (episodes == episodes[:, :1]) & has_action  # (B, n): a transition of the episode that t belongs to
    if horizon is not None:
        counts = counts & (torch.arange(rewards.shape[1], device=rewards.device) < horizon)
    powers = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
    steps = counts.sum(1)
    bootstraps = ~(terminated & counts).any(1)
    return NStepReturn((rewards * counts * powers).sum(1), steps, gamma ** steps.to(rewards.dtype) * bootstraps)
