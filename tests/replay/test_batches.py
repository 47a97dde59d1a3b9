"""n-step returns by hand and by brute force; whole batches are read in test_against_plain_replay.py."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay.batches import n_step_return
from tests.replay.storing import Entry, fill

EPISODES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)  # (length, terminates)


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


@settings(max_examples=100)
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
