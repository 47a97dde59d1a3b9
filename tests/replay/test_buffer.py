"""The replay buffer's fields, its state and its memory, and frame stacks as environments make them.

What is drawn and read of it is compared with a plain list of episodes in test_against_plain_replay.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.envs.vector import FrameStack
from playvirtual.replay import ReplayBuffer
from tests.replay.storing import fill, picture, store


@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_replay_buffer_and_frame_stack_agree_on_frames_before_an_episode(
    lengths: list[int], depth: int, repeat: bool
) -> None:
    replay = ReplayBuffer(100, (1, 1, 1), depth, None, repeat_first=repeat)
    stack = FrameStack(1, depth, (1, 1, 1), repeat_first=repeat)
    number = 0
    for length in lengths:
        stack.clear([0])
        for t in range(length):
            number += 1
            frame = picture(number)
            stack.push(frame[None])
            position = store(replay, frame, 0, 0.0, terminated=t == length - 1)
            stored = replay.observations(torch.tensor(position)).numpy()
            np.testing.assert_array_equal(stored, stack.observations[0])
            expected = [max(number - back, number - t) if repeat or back <= t else 0 for back in range(depth)][::-1]
            assert stored.flatten().tolist() == expected


def test_sequence_positions_wrap_around() -> None:
    replay = ReplayBuffer(5, (1, 1, 1), 1, None)
    assert replay.sequence_positions(torch.tensor([1, 3]), 4).tolist() == [[1, 2, 3, 4], [3, 4, 0, 1]]


@pytest.mark.parametrize("action_size", [None, 1, 6, 21])
def test_types_and_shapes_of_the_fields(action_size: int | None) -> None:
    replay = ReplayBuffer(7, (2, 1, 3), 1, action_size)
    if action_size is None:
        assert (replay.actions.dtype, replay.actions.shape) == (torch.int64, (7,))
    else:
        assert (replay.actions.dtype, replay.actions.shape) == (torch.float32, (7, action_size))
    for name, dtype in [("rewards", torch.float32), ("terminated", torch.bool), ("has_action", torch.bool)]:
        assert (getattr(replay, name).dtype, getattr(replay, name).shape) == (dtype, (7,))
    for name in ("episodes", "entry_ids"):
        assert (getattr(replay, name).dtype, getattr(replay, name).tolist()) == (torch.int64, [-1] * 7)


def test_a_state_is_a_copy_that_another_buffer_loads() -> None:
    # Entries: a step, a step before a truncation, the truncated episode's last frame, a terminating step.
    one, _ = fill([(2, False), (1, True)], 5, 2, action_size=2)
    two = ReplayBuffer(5, (1, 1, 1), 2, 2)
    state = one.state_dict()
    assert all(value.is_contiguous() for value in state.values() if isinstance(value, torch.Tensor))
    for _ in range(5):
        store(one, picture(0), [9.0, 9.0], 9.0, terminated=True)
    two.load_state_dict(state)
    assert two.rewards.tolist() == [1.0, 2.0, 0.0, 4.0, 0.0]
    assert two.valid_starts(1).tolist() == [True, True, False, False, False]
    store(two, picture(5), [5.0, 5.0], 5.0, terminated=True)  # goes to the next position, in the next episode
    assert two.entry_ids.tolist() == [0, 1, 2, 3, 4]
    assert two.episodes.tolist() == [0, 0, 0, 1, 2]


def test_memory_of_a_full_atari_buffer() -> None:
    """100k frames of 84×84 and the fields of their entries stay under 1.0 GB."""
    replay = ReplayBuffer(100_000, (1, 84, 84), 4, None)
    memory = [v.untyped_storage() for v in vars(replay).values() if isinstance(v, torch.Tensor)]
    assert sum({storage.data_ptr(): storage.nbytes() for storage in memory}.values()) < 1.0e9
