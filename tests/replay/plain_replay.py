"""Replay, batches and priorities as a person reads them in a list of episodes, with loops instead of indices.

Nothing here is fast and nothing is shared with the replay buffer: a start is a pair (episode, time), and what stands at
it, before it and after it is looked up in the list, one frame and one reward at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.replay import RainbowBatch, SequenceBatch, TransitionBatch

Array = npt.NDArray[np.generic]
SMALLEST, LARGEST, ADDED = 1e-6, 1e6, 1e-5  # limits of priorities, and what the released code adds to p^α


@dataclass
class Episode:
    """What happened between two starts: a reset, or in training a lost life."""

    frames: list[Array] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)  # [t] is taken in frames[t]; the newest frame has none yet
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False  # by its last action, also where that cost a life


class Entry(NamedTuple):
    """Where a stored frame stands."""

    episode: int
    time: int


class NStep(NamedTuple):
    """The return of a start, the factor of the value that is added to it, and the entry of that value."""

    total: float
    discount: float
    bootstrap: int


class PlainReplay:
    """Every episode ever played, of which the newest `capacity` frames can still be drawn."""

    def __init__(self, capacity: int, stack: int, *, repeat_first: bool) -> None:
        self.capacity, self.stack, self.repeat_first = capacity, stack, repeat_first
        self.episodes = [Episode()]
        self.entries: list[Entry] = []  # of all frames in the order of time; the index of one is its number

    def observe(self, frame: Array) -> None:
        """A new frame of the present episode."""
        episode = self.episodes[-1]
        self.entries.append(Entry(len(self.episodes) - 1, len(episode.frames)))
        episode.frames.append(np.array(frame))

    def act(self, action: npt.ArrayLike, reward: float, *, terminated: bool) -> None:
        """What was done in the newest frame; after termination the next frame is that of another episode."""
        episode = self.episodes[-1]
        episode.actions.append(np.array(action))
        episode.rewards.append(reward)
        if terminated:
            episode.terminated = True
            self.episodes.append(Episode())

    def truncate(self, last_frame: Array) -> None:
        """The last frame of an episode that a time limit ended; nothing is done in it."""
        self.observe(last_frame)
        self.episodes.append(Episode())

    def number_at(self, position: int) -> int:
        """The number of the frame that a ring of `capacity` places holds at a position."""
        number = len(self.entries) - 1
        while number % self.capacity != position:
            number -= 1
        return number

    def acts(self, number: int) -> bool:
        """Whether an action was taken in a frame."""
        entry = self.entries[number]
        return entry.time < len(self.episodes[entry.episode].actions)

    def terminates(self, number: int) -> bool:
        """Whether the action taken in a frame ended its episode."""
        entry = self.entries[number]
        episode = self.episodes[entry.episode]
        return episode.terminated and entry.time == len(episode.actions) - 1

    def observation(self, number: int) -> Array:
        """(stack·C, H, W): the last frames of the episode up to this one, oldest first."""
        entry = self.entries[number]
        frames = self.episodes[entry.episode].frames
        seen = []
        for time in range(entry.time - self.stack + 1, entry.time + 1):
            if time >= 0:
                seen.append(frames[time])
            else:
                seen.append(frames[0] if self.repeat_first else np.zeros_like(frames[0]))
        return np.concatenate(seen)

    def action(self, number: int) -> Array:
        """The action taken in a frame; zeros where none was."""
        entry = self.entries[number]
        if self.acts(number):
            return self.episodes[entry.episode].actions[entry.time]
        return np.zeros_like(next(e.actions[0] for e in self.episodes if e.actions))

    def reward(self, number: int) -> float:
        """What the action taken in a frame gave."""
        entry = self.entries[number]
        return self.episodes[entry.episode].rewards[entry.time]

    def drawable(self, span: int, *, within_episode: bool = False) -> list[int]:
        """The numbers at which a sample may start that reaches `span` frames ahead, those frames of its episode."""
        overwritten = set(range(len(self.entries) - self.capacity))
        starts = []
        for number in range(len(self.entries)):
            there = number + span < len(self.entries)
            whole = not any(number - back in overwritten for back in range(self.stack))
            inside = there and self.entries[number + span].episode == self.entries[number].episode
            if there and whole and self.acts(number) and (inside or not within_episode):
                starts.append(number)
        return starts

    def mask(self, number: int, K: int) -> list[float]:
        """1 for the states of the start's episode in which its terminating action is not taken."""
        episode = self.entries[number].episode
        flags = []
        for k in range(K + 1):
            other = self.entries[number + k].episode != episode
            flags.append(0.0 if other or self.terminates(number + k) else 1.0)
        return flags

    def n_step(self, number: int, n: int, gamma: float) -> NStep:
        """Up to n rewards of the start's episode, and what is bootstrapped from unless it terminated among them."""
        total, factor, now = 0.0, 1.0, number
        while now < number + n and self.entries[now].episode == self.entries[number].episode and self.acts(now):
            total += factor * self.reward(now)
            factor *= gamma
            if self.terminates(now):
                return NStep(total, 0.0, now + 1)
            now += 1
        return NStep(total, factor, now)

    # What batches hold

    def check_sequences(self, batch: SequenceBatch, K: int, masks: list[list[float]]) -> None:
        """Compares the sequences of a batch with those that start at its positions."""
        for b, number in enumerate(self._numbers(batch.positions)):
            states = [self.observation(number + k) for k in range(K + 1)]
            np.testing.assert_array_equal(batch.observations[b].numpy(), np.stack(states))
            actions = [self.action(number + k) for k in range(max(K, 1))]
            np.testing.assert_array_equal(batch.actions[b].numpy(), np.stack(actions))
            assert batch.mask[b].tolist() == masks[b], number

    def check_rainbow(self, batch: RainbowBatch, *, K: int, n: int, gamma: float) -> None:
        """Compares everything but the weights of a batch with what starts at its positions."""
        numbers = self._numbers(batch.sequences.positions)
        self.check_sequences(batch.sequences, K, [self.mask(number, K) for number in numbers])
        for b, number in enumerate(numbers):
            expected = self.n_step(number, n, gamma)
            np.testing.assert_allclose(batch.returns[b], expected.total, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(batch.discounts[b], expected.discount, rtol=1e-5)
            if expected.discount:
                seen = batch.next_observations[b].numpy()
                np.testing.assert_array_equal(seen, self.observation(expected.bootstrap))

    def check_transitions(self, batch: TransitionBatch, gamma: float) -> None:
        """Compares the transitions of a batch with those at its positions."""
        for b, number in enumerate(self._numbers(batch.positions)):
            np.testing.assert_array_equal(batch.observations[b].numpy(), self.observation(number))
            np.testing.assert_array_equal(batch.actions[b].numpy(), self.action(number))
            np.testing.assert_allclose(batch.rewards[b], self.reward(number), rtol=1e-6)
            expected = 0.0 if self.terminates(number) else gamma
            np.testing.assert_allclose(batch.discounts[b], expected, rtol=1e-6)
            np.testing.assert_array_equal(batch.next_observations[b].numpy(), self.observation(number + 1))

    def _numbers(self, positions: Tensor) -> list[int]:
        return [self.number_at(int(position)) for position in positions]


class PlainPriorities:
    """p of each start by its number: 1 when it can first be drawn, then what updates give it."""

    def __init__(self, replay: PlainReplay, span: int, alpha: float) -> None:
        self.replay, self.span, self.alpha = replay, span, alpha
        self.updated: dict[int, float] = {}

    def priority(self, number: int) -> float:
        return self.updated.get(number, 1.0)

    def update(self, positions: Tensor, priorities: Tensor) -> None:
        """The new priorities of a batch's sequences."""
        for position, priority in zip(positions.tolist(), priorities.tolist(), strict=True):
            self.updated[self.replay.number_at(position)] = min(max(priority, SMALLEST), LARGEST)

    def powers(self) -> list[float]:
        """(capacity) p^α by position; 0 where nothing can be drawn."""
        powers = [0.0] * self.replay.capacity
        for number in self.replay.drawable(self.span):
            powers[number % self.replay.capacity] = self.priority(number) ** self.alpha
        return powers

    def weights(self, positions: Tensor, beta: float) -> Tensor:
        """Importance weights (1 / p^α)^β, of which the largest in the batch is 1."""
        numbers = [self.replay.number_at(int(position)) for position in positions]
        raw = [(1.0 / (self.priority(number) ** self.alpha + ADDED)) ** beta for number in numbers]
        return torch.tensor([weight / max(raw) for weight in raw])
