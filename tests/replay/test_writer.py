"""The ring against plain lists: whatever is added, by whichever way, every column shows it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import Priorities, Replay
from playvirtual.replay.records import columns, layout_of
from playvirtual.replay.writer import Writer
from tests.replay.storing import store

SHAPE = (2, 1, 3)


class Row(NamedTuple):
    """An entry as a person would write it down."""

    frame: list[int]
    actions: Any
    rewards: float
    terminals: bool
    acted: bool
    episodes: int
    numbers: int


# One event: reward, how the episode goes on, or None for an episode that is closed from outside.
EVENTS = st.lists(
    st.one_of(st.none(), st.tuples(st.floats(-9, 9, width=32), st.sampled_from(["goes on", "terminal", "time limit"]))),
    max_size=60,
)


def frame_of(number: int) -> npt.NDArray[np.uint8]:
    return np.arange(number, number + 6).astype(np.uint8).reshape(SHAPE)


def play(replay: Replay, events: list[tuple[float, str] | None], action_size: int | None) -> list[Row]:
    """Adds the events to the replay and returns the same as a list of every entry ever written."""
    rows: list[Row] = []
    episode = 0

    def note(action: Any, reward: float, terminal: bool, acted: bool) -> npt.NDArray[np.uint8]:
        frame = frame_of(len(rows))
        rows.append(Row(frame.flatten().tolist(), action, reward, terminal, acted, episode, len(rows)))
        return frame

    nothing: Any = 0 if action_size is None else [0.0] * action_size
    for event in events:
        if event is None:
            replay.close(note(nothing, 0.0, False, False))
            episode += 1
            continue
        reward, how = event
        number = len(rows)
        chosen = np.int64(number) if action_size is None else np.arange(number, number + action_size) / 4
        frame = note(chosen.tolist(), reward, how == "terminal", True)
        last = note(nothing, 0.0, False, False) if how == "time limit" else None
        position = store(replay, frame, chosen, reward, terminal=how == "terminal", last=last)
        assert position == number % replay.capacity
        episode += how != "goes on"
    return rows


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.integers(2, 20), st.sampled_from([None, 1, 3]), st.sampled_from([0, 1, 3]))
def test_the_ring_holds_the_last_entries_of_a_plain_list(
    events: list[tuple[float, str] | None], capacity: int, action_size: int | None, slots: int
) -> None:
    """Slots are the way to a GPU: entries pass through fewer rows than there are, again and again."""
    replay = Replay(capacity, SHAPE, 1, action_size)
    if slots:
        layout = layout_of(action_size)
        records = torch.zeros(capacity, layout.itemsize, dtype=torch.uint8)
        for name, column in columns(records, layout).items():
            setattr(replay, name, column.copy_(getattr(replay, name)))
        replay._writer = Writer(replay.frames, records, layout, slots)
    rows = play(replay, events, action_size)
    assert replay.head == int(replay._head) == len(rows)
    for row in rows[-capacity:]:
        at = row.numbers % capacity
        assert replay.frames[at].flatten().tolist() == row.frame
        for name in Row._fields[1:]:
            assert getattr(replay, name)[at].tolist() == getattr(row, name), name
    unwritten = slice(len(rows), None)
    assert (replay.numbers[unwritten] == -1).all()
    assert (replay.episodes[unwritten] == -1).all()
    assert not replay.acted[unwritten].any()


@pytest.mark.parametrize("action_size", [None, 1, 6, 21])
def test_columns_have_the_types_that_samplers_and_checkpoints_know(action_size: int | None) -> None:
    replay = Replay(7, SHAPE, 1, action_size)
    if action_size is None:
        assert (replay.actions.dtype, replay.actions.shape) == (torch.int64, (7,))
    else:
        assert (replay.actions.dtype, replay.actions.shape) == (torch.float32, (7, action_size))
    for name, dtype in [("rewards", torch.float32), ("terminals", torch.bool), ("acted", torch.bool)]:
        assert (getattr(replay, name).dtype, getattr(replay, name).shape) == (dtype, (7,))
    for name in ("episodes", "numbers"):
        assert (getattr(replay, name).dtype, getattr(replay, name).tolist()) == (torch.int64, [-1] * 7)


def test_a_state_is_a_copy_that_another_replay_takes_over() -> None:
    one, two = Replay(5, SHAPE, 2, 2), Replay(5, SHAPE, 2, 2)
    play(one, [(1.0, "goes on"), (2.0, "time limit"), (3.0, "terminal")], 2)
    state = one.state_dict()
    assert all(value.is_contiguous() for value in state.values() if isinstance(value, torch.Tensor))
    for _ in range(5):
        store(one, frame_of(0), [9.0, 9.0], 9.0, terminal=True)
    two.load_state_dict(state)
    assert two.rewards.tolist() == [1.0, 2.0, 0.0, 3.0, 0.0]
    assert two.startable(1).tolist() == [True, True, False, False, False]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["goes on", "terminal", "time limit"]), st.booleans()), max_size=60),
    st.integers(2, 25),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_priorities_follow_entry_by_entry(
    events: list[tuple[str, bool]], capacity: int, stack: int, span: int, every: int
) -> None:
    """However many entries came since the last time, and whatever priorities were given back meanwhile."""
    replay = Replay(capacity, SHAPE, stack, None)
    priorities = Priorities(replay, alpha=1.0, span=span)
    values, followed = [0.0] * capacity, 0
    for step, (how, learns) in enumerate(events):
        last = frame_of(0) if how == "time limit" else None
        store(replay, frame_of(0), 0, 0.0, terminal=how == "terminal", last=last)
        if step % every:
            continue
        priorities.follow()
        for entry in range(followed, replay.head):
            for overwritten in range(stack) if entry >= capacity else ():
                values[(entry + overwritten) % capacity] = 0.0
            if entry >= span:
                values[(entry - span) % capacity] = float(replay.acted[(entry - span) % capacity])
        followed = replay.head
        assert priorities.values.tolist() == values
        drawn = [position for position, value in enumerate(values) if value > 0]
        if learns and drawn:
            values[drawn[-1]] = float(step + 2)
            priorities.update(torch.tensor(drawn[-1:]), torch.tensor([float(step + 2)]))
