"""The ring against a plain list of episodes, for any stream of episodes and any wrap-around."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.envs.stack import FrameStack
from playvirtual.replay import Priorities, Replay, n_step
from tests.replay.storing import store


class Entry(NamedTuple):
    """What a person would write down: the whole observation, not a single frame."""

    stack: list[int]  # frame numbers, 0 before the episode's start
    action: int
    reward: float
    terminal: bool
    acted: bool
    episode: int


# An episode is its length and how it ends: by a terminal (True) or by a time limit (False).
EPISODES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


def fill(episodes: list[tuple[int, bool]], capacity: int, stack: int) -> tuple[Replay, list[Entry]]:
    """A replay and, beside it, the whole history kept the long way round. Frame i shows the number i + 1."""
    replay = Replay(capacity, (1, 1, 1), stack, None)
    history: list[Entry] = []
    number = 0
    for e, (length, terminal_end) in enumerate(episodes):
        shown = [0] * stack
        for t in range(length):
            number += 1
            shown = [*shown[1:], number % 256]
            ends = t == length - 1
            frame = np.full((1, 1, 1), number % 256, np.uint8)
            terminal = ends and terminal_end
            action, reward = number % 7, float(number)
            last = None
            history.append(Entry(shown, action, reward, terminal, True, e))
            if ends and not terminal_end:
                number += 1
                last = np.full((1, 1, 1), number % 256, np.uint8)
                history.append(Entry([*shown[1:], number % 256], 0, 0.0, False, False, e))
            store(replay, frame, action, reward, terminal=terminal, last=last)
    return replay, history


def alive_numbers(replay: Replay) -> range:
    return range(max(0, replay.head - replay.capacity), replay.head)


@settings(max_examples=150, deadline=None)
@given(EPISODES, st.integers(5, 40), st.integers(1, 4))
def test_every_stack_equals_what_the_environment_gave(
    episodes: list[tuple[int, bool]], capacity: int, stack: int
) -> None:
    replay, history = fill(episodes, capacity, stack)
    assert replay.head == len(history)
    for number in alive_numbers(replay):
        if replay.head > capacity and number < replay.head - capacity + stack - 1:
            continue  # its history has been overwritten: not startable
        stored = replay.observations(torch.tensor([number % capacity]))[0, :, 0, 0].tolist()
        assert stored == history[number].stack


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_replay_and_frame_stack_agree_on_what_stands_before_a_start(
    lengths: list[int], depth: int, repeat: bool
) -> None:
    replay = Replay(100, (1, 1, 1), depth, None, repeat_first=repeat)
    stack = FrameStack(1, depth, (1, 1, 1), repeat_first=repeat)
    number = 0
    for length in lengths:
        stack.clear([0])
        for t in range(length):
            number += 1
            frame = np.full((1, 1, 1), number, np.uint8)
            stack.push(frame[None])
            position = store(replay, frame, 0, 0.0, terminal=t == length - 1)
            stored = replay.observations(torch.tensor(position)).numpy()
            np.testing.assert_array_equal(stored, stack.observations[0])
            expected = [max(number - back, number - t) if repeat or back <= t else 0 for back in range(depth)][::-1]
            assert stored.flatten().tolist() == expected


@settings(max_examples=150, deadline=None)
@given(EPISODES, st.integers(12, 40), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_startable_by_brute_force(
    episodes: list[tuple[int, bool]], capacity: int, stack: int, span: int, within: bool
) -> None:
    replay, history = fill(episodes, capacity, stack)
    startable = replay.startable(span, within_episode=within)
    oldest = max(0, replay.head - capacity)
    wrapped = replay.head > capacity
    for number in alive_numbers(replay):
        expected = history[number].acted and number + span < replay.head
        expected = expected and not (wrapped and number < oldest + stack - 1)
        if within and expected:
            expected = history[number + span].episode == history[number].episode
        assert bool(startable[number % capacity]) == expected, number


@settings(max_examples=100, deadline=None)
@given(EPISODES, st.integers(12, 40), st.integers(1, 4), st.integers(1, 6))
def test_new_priorities_are_one_exactly_where_a_sequence_may_start(
    episodes: list[tuple[int, bool]], capacity: int, stack: int, span: int
) -> None:
    replay = Replay(capacity, (1, 1, 1), stack, None)
    priorities = Priorities(replay, alpha=0.5, span=span)
    frame = np.zeros((1, 1, 1), np.uint8)
    for length, terminal_end in episodes:
        for t in range(length):
            ends = t == length - 1
            store(
                replay,
                frame,
                0,
                0.0,
                terminal=ends and terminal_end,
                last=frame if ends and not terminal_end else None,
            )
            priorities.follow()
            torch.testing.assert_close(priorities.values, replay.startable(span).float())


@settings(max_examples=200, deadline=None)
@given(EPISODES, st.integers(1, 6), st.floats(0.5, 1.0))
def test_n_step_returns_by_brute_force(episodes: list[tuple[int, bool]], n: int, gamma: float) -> None:
    replay, history = fill(episodes, 200, 1)
    numbers = torch.tensor([i for i in range(replay.head - n) if history[i].acted], dtype=torch.int64)
    if len(numbers) == 0:
        return
    window = replay.ahead(numbers, n)
    result = n_step(
        replay.rewards[window], replay.terminals[window], replay.acted[window], replay.episodes[window], gamma
    )
    for row, number in enumerate(numbers.tolist()):
        expected, steps, discount = 0.0, 0, 1.0
        for entry in history[number : number + n]:
            if entry.episode != history[number].episode or not entry.acted:
                break
            expected += gamma**steps * entry.reward
            steps += 1
            discount = 0.0 if entry.terminal else gamma**steps
            if entry.terminal:
                break
        assert float(result.returns[row]) == pytest.approx(expected, rel=1e-4)
        assert int(result.steps[row]) == steps
        assert float(result.discounts[row]) == pytest.approx(discount, rel=1e-4)


def test_n_step_by_hand() -> None:
    """r = 1, 2, 4 with γ = 1/2: three steps give 1 + 1 + 1; a terminal after the second gives 1 + 1, no bootstrap."""
    rewards = torch.tensor([[1.0, 2.0, 4.0]]).repeat(3, 1)
    terminals = torch.tensor([[False] * 3, [False, True, False], [False] * 3])
    acted = torch.tensor([[True] * 3, [True] * 3, [True, False, True]])
    episodes = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 1]])
    result = n_step(rewards, terminals, acted, episodes, 0.5)
    assert result.returns.tolist() == [3.0, 2.0, 1.0]
    assert result.steps.tolist() == [3, 2, 1]
    assert result.discounts.tolist() == [0.125, 0.0, 0.5]


def test_memory_of_a_full_atari_replay() -> None:
    """100k frames of 84×84 and all that goes with them stay under 1.0 GB."""
    replay = Replay(100_000, (1, 84, 84), 4, None)
    memory = [v.untyped_storage() for v in vars(replay).values() if isinstance(v, torch.Tensor)]
    assert sum({storage.data_ptr(): storage.nbytes() for storage in memory}.values()) < 1.0e9
