"""Entries written directly or through staging slots: every field shows what a plain list holds."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import ReplayBuffer
from tests.replay.storing import store

SHAPE = (2, 1, 3)


class Row(NamedTuple):
    """An entry with all its fields."""

    frame: list[int]
    actions: Any
    rewards: float
    terminated: bool
    has_action: bool
    episodes: int
    entry_ids: int


# One event: a reward and how the step ends, or None for an episode that is ended without a step.
ENDINGS = ["continues", "terminated", "truncated"]
EVENTS = st.lists(st.one_of(st.none(), st.tuples(st.floats(-9, 9, width=32), st.sampled_from(ENDINGS))), max_size=60)


def numbered_frame(number: int) -> npt.NDArray[np.uint8]:
    return np.arange(number, number + 6).astype(np.uint8).reshape(SHAPE)


def play(replay: ReplayBuffer, events: list[tuple[float, str] | None], action_size: int | None) -> list[Row]:
    """Adds the events to the buffer and returns all entries ever written as a list."""
    rows: list[Row] = []
    episode = 0

    def add_row(action: Any, reward: float, terminated: bool, has_action: bool) -> npt.NDArray[np.uint8]:
        frame = numbered_frame(len(rows))
        rows.append(Row(frame.flatten().tolist(), action, reward, terminated, has_action, episode, len(rows)))
        return frame

    no_action: Any = 0 if action_size is None else [0.0] * action_size
    for event in events:
        if event is None:
            replay.end_episode(add_row(no_action, 0.0, False, False))
            episode += 1
            continue
        reward, ending = event
        number = len(rows)
        action = np.int64(number) if action_size is None else np.arange(number, number + action_size) / 4
        frame = add_row(action.tolist(), reward, ending == "terminated", True)
        last_frame = add_row(no_action, 0.0, False, False) if ending == "truncated" else None
        position = store(replay, frame, action, reward, terminated=ending == "terminated", last_frame=last_frame)
        assert position == number % replay.capacity
        episode += ending != "continues"
    return rows


@settings(max_examples=150)
@given(EVENTS, st.integers(2, 20), st.sampled_from([None, 1, 3]), st.sampled_from([0, 1, 3]))
def test_the_buffer_holds_the_last_entries_of_a_plain_list(
    events: list[tuple[float, str] | None], capacity: int, action_size: int | None, slots: int
) -> None:
    """Staging slots are used on GPUs; here there are fewer of them than entries, so each is used many times."""
    replay = ReplayBuffer(capacity, SHAPE, 1, action_size, staging_slots=slots)
    rows = play(replay, events, action_size)
    assert replay.num_added == len(rows)
    for row in rows[-capacity:]:
        at = row.entry_ids % capacity
        assert replay.frames[at].flatten().tolist() == row.frame
        for name in Row._fields[1:]:
            assert getattr(replay, name)[at].tolist() == getattr(row, name), name
    unwritten = slice(len(rows), None)
    assert (replay.entry_ids[unwritten] == -1).all()
    assert (replay.episodes[unwritten] == -1).all()
    assert not replay.has_action[unwritten].any()
