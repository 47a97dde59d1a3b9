"""Samplers draw the positions that a batch is read from: in proportion to priorities, or uniformly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from playvirtual.replay.batches import (
    RainbowBatch,
    SacBatch,
    SequenceBatch,
    TransitionBatch,
    rainbow_batch,
    sequence_batch,
    transition_batch,
)
from playvirtual.replay.buffer import ReplayBuffer


class BatchSampler(Protocol):
    """What training needs of a sampler, whose batches are of the kind that its agent learns from."""

    # Whether a batch may read more of the newest entry than its frame: then its transition must be added first.
    reads_newest_transition: bool

    def on_append(self) -> None:
        """Is called after entries were added to the replay buffer and before the next batch is sampled."""

    def sample(self, schedule: Mapping[str, Tensor]) -> Any:
        """Draws one batch without waiting for the device; `schedule` has the present values of scheduled numbers."""

    def update_priorities(self, batch: Any, priorities: Tensor | None) -> None:
        """Receives the new priorities (B,) of a batch, or None from an agent that has none."""

    def positions(self, batch: Any) -> dict[str, Tensor]:
        """The positions in the replay buffer that a batch was read from, by the kind of sample."""

    def compile(self) -> None:
        """Compiles the functions that read batches."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes in the sampler."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned, in place."""


def draw_proportional(weights: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """(count,) positions drawn independently with probability weights / Σ weights; never one of weight 0."""
    return _positions_at(*_running_sum_and_draws(weights, count, generator))


def _running_sum_and_draws(weights: Tensor, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Σ_{j ≤ i} w_j for every position i, and `count` numbers drawn from [0, 1)."""
    # A float32 running sum of 100k priorities would drop the small ones; on a GPU weights of float64 save a kernel.
    cumulative = weights.cumsum(0, dtype=torch.float64)
    return cumulative, torch.rand(count, generator=generator, device=weights.device, dtype=torch.float64)


def _positions_at(cumulative: Tensor, u: Tensor) -> Tensor:
    """The first position whose running sum exceeds u·Σ, for each u in [0, 1)."""
    # The factor keeps rounding from reaching Σ itself.
    drawn = torch.searchsorted(cumulative, u * (1 - 2**-50) * cumulative[-1], right=True)
    return drawn.clamp_max(len(cumulative) - 1)  # out of range only if all weights are 0


class PrioritizedSampler:
    """Prioritized replay (Schaul et al., 2016): P(i) ∝ p_i^α, with importance weights (1 / P(i))^β.

    The importance weights are scaled so that the largest in a batch is 1. An entry has priority 0 until the
    max(K, n_step) entries after it exist, then 1 until its first update, and 0 again once frames of its stack are
    overwritten. So the priorities alone say where a sequence may start. With `largest_first` a new entry has the
    largest priority that any entry has had so far, at least 1. A schedule that has "n_step" or "discount" decides these
    in the place of `n_step`, which is the most it may ask for, and of `gamma`.
    """

    def __init__(
        self,
        replay: ReplayBuffer,
        generator: torch.Generator,
        *,
        batch_size: int,
        K: int,
        n_step: int,
        gamma: float,
        alpha: float,
        largest_first: bool = False,
    ) -> None:
        self.replay, self.generator = replay, generator
        self.batch_size, self.alpha = batch_size, alpha
        self.span = max(K, n_step)  # entries that must follow the start of a sequence
        # The mask reads `terminated` of the K-th entry after the start; rewards end one entry before the n-th.
        self.reads_newest_transition = n_step <= K
        # (capacity,) p^α as float32 has them, in the type of their running sum
        self.priorities = torch.zeros(replay.capacity, device=replay.device, dtype=torch.float64)
        self._largest = torch.ones((), device=replay.device) if largest_first else None  # p^α of a new entry
        self._num_seen = 0  # entries of the replay buffer that `priorities` accounts for
        self._gamma = gamma
        self._read_at: Callable[..., RainbowBatch] = partial(rainbow_batch, replay, K=K, n_step=n_step)
        self._read: Callable[..., RainbowBatch] = self._read_drawn
        self._write: Callable[[Tensor, Tensor], None] = self._write_priorities

    def on_append(self) -> None:
        """Sets the priorities that change by the entries added since the last call."""
        capacity, stack = self.replay.capacity, self.replay.frame_stack
        while self._num_seen < self.replay.num_added:
            entry = self._num_seen
            if entry >= capacity:  # it overwrote an older frame, which the next stack − 1 entries need as well
                self._clear(entry % capacity, stack)
            if entry >= self.span:
                start = (entry - self.span) % capacity
                # One launch on the device, because the host knows neither the flag nor the largest priority.
                if self._largest is None:
                    self.priorities[start].copy_(self.replay.has_action[start])
                else:
                    torch.mul(self.replay.has_action[start], self._largest, out=self.priorities[start])
            self._num_seen += 1

    def _clear(self, start: int, count: int) -> None:
        """Gives priority 0 to `count` positions from `start` on, and wraps around at the end of the ring buffer."""
        self.priorities[start : start + count].zero_()
        if start + count > len(self.priorities):
            self.priorities[: start + count - len(self.priorities)].zero_()

    def sample(self, schedule: Mapping[str, Tensor]) -> RainbowBatch:
        """Draws one batch without waiting for the device; β is schedule["beta"]."""
        cumulative, u = _running_sum_and_draws(self.priorities, self.batch_size, self.generator)
        return self._read(
            cumulative, u, schedule["beta"], schedule.get("discount", self._gamma), schedule.get("n_step")
        )

    def _read_drawn(
        self, cumulative: Tensor, u: Tensor, beta: Tensor, gamma: float | Tensor, horizon: Tensor | None
    ) -> RainbowBatch:
        """The batch that the numbers u (B,) draw, with its importance weights; compiled as one function."""
        index = _positions_at(cumulative, u)
        weights = (1.0 / (self.priorities[index].float() + 1e-5)) ** beta
        return self._read_at(index, weights / weights.max(), gamma=gamma, horizon=horizon)

    def update_priorities(self, batch: RainbowBatch, priorities: Tensor | None) -> None:
        """Gives the sequences of a batch their new priorities (B,)."""
        if priorities is None:
            raise ValueError("priorities: None is not allowed; allowed: one priority per sequence of the batch")
        self._write(batch.sequences.positions, priorities)

    def _write_priorities(self, index: Tensor, priorities: Tensor) -> None:
        new = priorities.clamp(1e-6, 1e6) ** self.alpha
        self.priorities[index] = new.to(self.priorities.dtype)
        if self._largest is not None:
            self._largest.copy_(torch.maximum(self._largest, new.max()))

    def positions(self, batch: RainbowBatch) -> dict[str, Tensor]:
        """The positions in the replay buffer at which the sequences of a batch start."""
        return {"sequences": batch.sequences.positions}

    def compile(self) -> None:
        """Compiles the functions that read a batch and write its priorities."""
        self._read = torch.compile(self._read_drawn)
        self._write = torch.compile(self._write_priorities)

    def state_dict(self) -> dict[str, Any]:
        """The priorities p^α, the largest so far where new entries get it, and the number of entries accounted for."""
        largest = {} if self._largest is None else {"largest": self._largest}
        priorities = self.priorities.float()  # exact: they were float32 before they were stored
        return {"priorities": priorities, "num_seen": self._num_seen, **largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned, in place."""
        saved = state["priorities"]  # of a run that was extended, they are fewer than there is room for now
        self.priorities[: len(saved)].copy_(saved)
        self._num_seen = state["num_seen"]
        if self._largest is not None:
            self._largest.copy_(state["largest"])


class UniformSampler:
    """Draws transitions for actor and critic, and sequences for the auxiliary objective, each uniformly."""

    reads_newest_transition = False

    def __init__(
        self,
        replay: ReplayBuffer,
        generator: torch.Generator,
        *,
        batch_size: int,
        sequence_batch_size: int,
        K: int,
        gamma: float,
    ) -> None:
        self.replay, self.generator, self.K = replay, generator, K
        self.batch_size, self.sequence_batch_size = batch_size, sequence_batch_size
        self._transitions_at: Callable[[Tensor], TransitionBatch] = partial(transition_batch, replay, gamma=gamma)
        self._transition_weights: Callable[[], Tensor] = self._weigh_transitions
        self._sequence_weights: Callable[[], Tensor] = self._weigh_sequences
        self._transitions: Callable[[Tensor, Tensor], TransitionBatch] = self._read_transitions
        self._sequences: Callable[[Tensor, Tensor, Tensor], SequenceBatch] = self._read_sequences

    def on_append(self) -> None:
        """Does nothing: the replay buffer itself tells which starts are valid."""

    def sample(self, schedule: Mapping[str, Tensor]) -> SacBatch:
        """Draws one batch without waiting for the device; nothing in it is scheduled."""
        weights = self._transition_weights()
        transitions = self._transitions(*_running_sum_and_draws(weights, self.batch_size, self.generator))
        sequences = None
        if self.K:
            weights = self._sequence_weights()
            cumulative, u = _running_sum_and_draws(weights, self.sequence_batch_size, self.generator)
            sequences = self._sequences(weights, cumulative, u)
        return SacBatch(transitions, sequences)

    def _weigh_transitions(self) -> Tensor:
        """(capacity,) 1 where a transition may be drawn, else 0; compiled as one function."""
        valid = self.replay.valid_starts(1)
        return valid.to(torch.float64)  # the type of the running sum

    def _weigh_sequences(self) -> Tensor:
        """(capacity,) 1 where a sequence may start, else 0; compiled as one function."""
        valid = self.replay.valid_starts(self.K, within_episode=True)
        return valid.to(torch.float64)

    def _read_transitions(self, cumulative: Tensor, u: Tensor) -> TransitionBatch:
        """The transitions that the numbers u (B,) draw; compiled as one function."""
        return self._transitions_at(_positions_at(cumulative, u))

    def _read_sequences(self, weights: Tensor, cumulative: Tensor, u: Tensor) -> SequenceBatch:
        """The sequences that the numbers u (B,) draw, all invalid while there is none; compiled as one function."""
        index = _positions_at(cumulative, u)
        return sequence_batch(self.replay, index, weights[index] > 0, K=self.K)

    def update_priorities(self, batch: SacBatch, priorities: Tensor | None) -> None:
        """Does nothing: uniform sampling has no priorities."""

    def positions(self, batch: SacBatch) -> dict[str, Tensor]:
        """The positions in the replay buffer of the transitions and, with K > 0, of the sequences' starts."""
        parts = {"transitions": batch.transitions, "sequences": batch.sequences}
        return {name: part.positions for name, part in parts.items() if part is not None}

    def compile(self) -> None:
        """Compiles what comes before and after the running sums and the random numbers."""
        self._transition_weights = torch.compile(self._weigh_transitions)
        self._sequence_weights = torch.compile(self._weigh_sequences)
        self._transitions = torch.compile(self._read_transitions)
        self._sequences = torch.compile(self._read_sequences)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: uniform sampling has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: uniform sampling has no state."""
