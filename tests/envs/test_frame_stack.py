"""Laws of the frame stack."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.envs.vector import FrameStack


def frames(values, channels=1):
    """One 2×3 frame per environment, filled with its value."""
    return np.broadcast_to(np.array(values, np.uint8)[:, None, None, None], (len(values), channels, 2, 3))


@given(st.integers(1, 5), st.integers(1, 3), st.lists(st.integers(1, 255), min_size=1, max_size=12))
def test_the_newest_frames_oldest_first_zeros_before_the_start(depth, channels, values):
    stack = FrameStack(1, depth, (channels, 2, 3))
    for value in values:
        stack.push(frames([value], channels))
    expected = ([0] * depth + values)[-depth:]
    assert stack.observations.shape == (1, depth * channels, 2, 3)
    assert stack.observations[0, :, 0, 0].tolist() == list(np.repeat(expected, channels))


@given(st.lists(st.tuples(st.integers(1, 255), st.booleans()), min_size=1, max_size=20))
def test_clearing_an_environment_is_a_new_stack_for_it_and_nothing_to_the_others(history):
    stack, untouched = FrameStack(2, 3, (1, 2, 3)), FrameStack(1, 3, (1, 2, 3))
    since_start: list[int] = []
    for value, cleared in history:
        if cleared:
            stack.clear(np.array([False, True]))
            since_start = []
        stack.push(frames([value, value]))
        untouched.push(frames([value]))
        since_start.append(value)
        assert np.array_equal(stack.observations[0], untouched.observations[0])
        assert stack.observations[1, :, 0, 0].tolist() == [0, 0, 0, *since_start][-3:]


def test_indices_and_masks_mean_the_same():
    one, other = FrameStack(3, 2, (1, 2, 3)), FrameStack(3, 2, (1, 2, 3))
    for stack, chosen in ((one, [0, 2]), (other, np.array([True, False, True]))):
        stack.push(frames([1, 2, 3]))
        stack.clear(chosen)
        stack.push(frames([7, 9]), chosen)
    assert one.observations[:, :, 0, 0].tolist() == [[0, 7], [0, 2], [0, 9]]
    assert np.array_equal(one.observations, other.observations)


def test_no_environments_is_no_change():
    stack = FrameStack(2, 2, (1, 2, 3))
    stack.push(frames([1, 2]))
    stack.clear([])
    stack.push(frames([])[:0], [])
    assert stack.observations[:, :, 0, 0].tolist() == [[0, 1], [0, 2]]


def test_observations_are_a_view():
    stack = FrameStack(1, 2, (1, 2, 3))
    observations = stack.observations
    assert stack.push(frames([5])) is observations
    assert observations[0, 1, 0, 0] == 5


CHOSEN = st.lists(st.integers(0, 2), unique=True)
HISTORY = st.lists(st.tuples(CHOSEN, st.none() | CHOSEN), min_size=5, max_size=20)


@given(st.integers(1, 4), st.booleans(), HISTORY)
def test_three_environments_beside_lists_of_their_frames(depth, repeat, history):
    """Some are cleared, then all or some get a frame, in any order; before the first one are zeros or copies of it."""
    stack, shown = FrameStack(3, depth, (2, 2, 3), repeat_first=repeat), [[], [], []]
    for time, (cleared, pushed) in enumerate(history):
        values = range(3 * time + 1, 3 * time + 4)  # no two frames are alike
        stack.clear(cleared)
        for index in cleared:
            shown[index] = []
        indices = range(3) if pushed is None else pushed
        stack.push(frames(values[: len(indices)], channels=2), pushed)
        for index, value in zip(indices, values, strict=False):
            shown[index].append(value)
        for index, seen in enumerate(shown):
            fill = seen[0] if repeat and seen else 0
            expected = ([fill] * depth + seen)[-depth:]
            assert stack.observations[index, :, 1, 2].tolist() == list(np.repeat(expected, 2))
