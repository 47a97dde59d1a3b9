"""What an environment looks like to the rest of the project: a row of independent lanes of one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Frames = npt.NDArray[np.uint8]  # (N, C, H, W)
Floats = npt.NDArray[np.float32]  # (N,)
Flags = npt.NDArray[np.bool_]  # (N,)
ActionSpace = spaces.Discrete[np.int64] | spaces.Box


class Step(NamedTuple):
    """What one action did in every lane. The arrays are the caller's to keep."""

    frames: Frames  # (N, C, H, W): the newest frame alone; stacking is the reader's business
    rewards: Floats  # (N,): as the task gives them, unclipped, summed over the action repeat
    terminal: Flags  # (N,): no future to bootstrap from (the end of a game or, in training, a lost life)
    over: Flags  # (N,): the episode has ended (terminal or time limit); the lane waits for a reset

    # A lost life is `terminal and not over`; a time limit is `over and not terminal`.


class Environment(Protocol):
    """N lanes of one task. A lane that is over stays as it is (reward 0, over) until it is reset.

    A lane that was never reset counts as over.
    """

    lanes: int
    frame_shape: tuple[int, int, int]  # (C, H, W) of one frame
    action_space: ActionSpace

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        """Starts a new episode in each of `lanes`; the seed alone decides how it goes. Returns their frames.

        Seeds are 0 … 2³¹ − 1; lanes may come in any order, each at most once.
        """
        ...

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        """One action per lane: (N,) integers for a discrete space, (N, A) floats for a box."""
        ...

    def picture(self, lane: int) -> Frames:
        """(H, W, 3): what a person would look at, for videos."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Preparing(Protocol):
    """An environment that can get its next episode ready while the present one is played."""

    def prepare(self, seed: int) -> None: ...
