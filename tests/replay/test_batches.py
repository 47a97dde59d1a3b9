"""Batches against a plain list of entries, and n-step returns by hand and by brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay.batches import n_step_return, rainbow_batch, sequence_batch, transition_batch
from tests.replay.storing import Entry, fill

GAMMA, STACK = 0.9, 3
EPISODES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)  # (length, terminates)


def stacks(observations: torch.Tensor) -> list[list[int]]:
    """(N, stack, 1, 1) -> what the frames of each observation show."""
    return observations[:, :, 0, 0].tolist()


def expected_return(entries: list[Entry], gamma: float) -> tuple[float, int, float]:
    """The return, the steps and the discount of the first entry, at most as many steps as there are entries."""
    total, steps, discount = 0.0, 0, 1.0
    for entry in entries:
        if entry.episode != entries[0].episode or not entry.has_action:
            break
        total += gamma**steps * entry.reward
        steps += 1
        discount = 0.0 if entry.terminated else gamma**steps
        if entry.terminated:
            break
    return total, steps, discount


@settings(max_examples=60)
@given(EPISODES, st.integers(2, 60))
def test_transitions(episodes: list[tuple[int, bool]], capacity: int) -> None:
    replay, history = fill([*episodes, (2, False)], capacity + STACK, STACK, action_size=1)
    index = torch.nonzero(replay.valid_starts(1)).flatten()
    batch = transition_batch(replay, index, gamma=GAMMA)
    assert torch.equal(batch.positions, index)
    for b, i in enumerate(replay.entry_ids[index].tolist()):
        entry = history[i]
        assert entry.has_action
        assert batch.actions[b].tolist() == [entry.action]
        assert float(batch.rewards[b]) == entry.reward
        assert stacks(batch.observations[b : b + 1]) == [entry.stack]
        assert float(batch.discounts[b]) == (0.0 if entry.terminated else np.float32(GAMMA))
        if not entry.terminated:  # also after the last action of a truncated episode
            assert stacks(batch.next_observations[b : b + 1]) == [history[i + 1].stack]


@settings(max_examples=60)
@given(EPISODES, st.integers(1, 5), st.integers(20, 60))
def test_sequences_within_an_episode(episodes: list[tuple[int, bool]], K: int, capacity: int) -> None:
    replay, history = fill(episodes, capacity, STACK, action_size=1)
    valid = replay.valid_starts(K, within_episode=True)
    index = torch.arange(len(replay))
    batch = sequence_batch(replay, index, valid[index], K=K)
    assert torch.equal(batch.positions, index)
    assert batch.mask.dtype == torch.float32
    assert batch.mask.tolist() == [[float(flag)] * (K + 1) for flag in valid[index]]
    for b in torch.nonzero(valid[index]).flatten().tolist():
        i = int(replay.entry_ids[b])
        sequence = history[i : i + K + 1]
        assert len({entry.episode for entry in sequence}) == 1
        assert batch.actions[b, :, 0].tolist() == [entry.action for entry in sequence[:K]]
        assert stacks(batch.observations[b]) == [entry.stack for entry in sequence]


@settings(max_examples=60)
@given(EPISODES, st.integers(0, 4), st.integers(1, 5), st.integers(20, 60))
def test_sequences_with_returns(episodes: list[tuple[int, bool]], K: int, n: int, capacity: int) -> None:
    """The mask is 1 up to the first terminating step, or up to the end of a truncated episode."""
    replay, history = fill(episodes, capacity, STACK)
    index = torch.nonzero(replay.valid_starts(max(K, n))).flatten()
    weights = torch.rand(len(index))
    batch = rainbow_batch(replay, index, weights, K=K, n_step=n, gamma=GAMMA)
    assert torch.equal(batch.sequences.positions, index)
    assert torch.equal(batch.weights, weights)
    for b, i in enumerate(replay.entry_ids[index].tolist()):
        sequence = history[i : i + K + 1]
        counted = [entry.episode == sequence[0].episode and not entry.terminated for entry in sequence]
        assert batch.sequences.mask[b].tolist() == [float(flag) for flag in counted]
        assert batch.sequences.actions[b].tolist() == [entry.action for entry in history[i : i + max(K, 1)]]
        assert stacks(batch.sequences.observations[b]) == [entry.stack for entry in sequence]
        total, steps, discount = expected_return(history[i : i + n], GAMMA)
        assert float(batch.returns[b]) == pytest.approx(total, rel=1e-4)
        assert float(batch.discounts[b]) == pytest.approx(discount, rel=1e-4)
        if discount:
            assert stacks(batch.next_observations[b : b + 1]) == [history[i + steps].stack]


@settings(max_examples=200)
@given(EPISODES, st.integers(1, 6), st.floats(0.5, 1.0))
def test_n_step_returns_by_brute_force(episodes: list[tuple[int, bool]], n: int, gamma: float) -> None:
    replay, history = fill([*episodes, (1, True)], 200, 1)
    starts = [i for i in range(replay.num_added - n) if history[i].has_action]
    index = replay.sequence_positions(torch.tensor(starts, dtype=torch.int64), n)
    fields = (replay.rewards, replay.terminated, replay.has_action, replay.episodes)
    result = n_step_return(*(field[index] for field in fields), gamma)
    assert len(result.returns) == len(starts)
    for row, i in enumerate(starts):
        total, steps, discount = expected_return(history[i : i + n], gamma)
        assert float(result.returns[row]) == pytest.approx(total, rel=1e-4)
        assert int(result.steps[row]) == steps
        assert float(result.discounts[row]) == pytest.approx(discount, rel=1e-4)


def test_n_step_return_by_hand() -> None:
    """r = 1, 2, 4 with γ = 1/2: three steps return 1 + 1 + 1; termination after the second 1 + 1, no bootstrap."""
    rewards = torch.tensor([[1.0, 2.0, 4.0]]).repeat(3, 1)
    terminated = torch.tensor([[False] * 3, [False, True, False], [False] * 3])
    has_action = torch.tensor([[True] * 3, [True] * 3, [True, False, True]])
    episodes = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 1]])
    result = n_step_return(rewards, terminated, has_action, episodes, 0.5)
    assert result.returns.tolist() == [3.0, 2.0, 1.0]
    assert result.steps.tolist() == [3, 2, 1]
    assert result.discounts.tolist() == [0.125, 0.0, 0.5]
