"""Whole transitions and whole episodes in one call; training adds a frame before it knows the action."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.replay import ReplayBuffer


def store(
    replay: ReplayBuffer,
    frame: npt.NDArray[np.uint8],
    action: npt.ArrayLike,
    reward: float,
    *,
    terminated: bool,
    last_frame: npt.NDArray[np.uint8] | None = None,
) -> int:
    """Adds a frame with its transition and returns the position; a truncated episode ends with `last_frame`."""
    position = replay.add_obs(frame)
    replay.add_transition(action, reward, terminated=terminated)
    if last_frame is not None:
        replay.end_episode(last_frame)
    return position


class Entry(NamedTuple):
    """One entry as a person would write it down: with the whole observation, not a single frame."""

    stack: list[int]  # what each frame of the observation shows, 0 before the episode's start
    action: int
    reward: float
    terminated: bool
    has_action: bool
    episode: int


def fill(
    episodes: list[tuple[int, bool]], capacity: int, stack: int, action_size: int | None = None
) -> tuple[ReplayBuffer, list[Entry]]:
    """A buffer with the given episodes (length, terminates), and the history of all entries as a plain list.

    Frame i shows the number (i + 1) % 256; actions and rewards are i + 1.
    """
    replay = ReplayBuffer(capacity, (1, 1, 1), stack, action_size)
    history: list[Entry] = []
    for episode, (length, terminates) in enumerate(episodes):
        shown = [0] * stack
        for t in range(length):
            number = len(history) + 1
            shown = [*shown[1:], number % 256]
            ends = t == length - 1
            terminated, last_frame = ends and terminates, None
            history.append(Entry(shown, number, float(number), terminated, True, episode))
            if ends and not terminates:
                last_frame = picture(number + 1)
                history.append(Entry([*shown[1:], (number + 1) % 256], 0, 0.0, False, False, episode))
            action = number if action_size is None else [number] * action_size
            store(replay, picture(number), action, float(number), terminated=terminated, last_frame=last_frame)
    return replay, history


def picture(number: int) -> npt.NDArray[np.uint8]:
    """A frame of one pixel that shows a number."""
    return np.full((1, 1, 1), number % 256, np.uint8)
