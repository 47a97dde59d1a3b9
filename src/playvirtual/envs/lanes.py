"""Turns single environments into the rows of lanes that the rest of the project works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from playvirtual.envs.protocol import ActionSpace, Frames, Step


class Outcome(NamedTuple):
    """What one environment frame brought."""

    reward: float
    terminal: bool
    over: bool


class Single(Protocol):
    """One environment. Moving on is apart from looking, so a frame that nobody reads is never drawn."""

    frame_shape: tuple[int, int, int]
    action_space: ActionSpace

    def reset(self, seed: int) -> None:
        """Starts a new episode that is decided by the seed alone."""
        ...

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        """Moves one environment frame on: a 0-d integer array for a discrete space, (A,) floats for a box."""
        ...

    def frame(self) -> Frames:
        """(C, H, W): what the agent sees now."""
        ...

    def picture(self) -> Frames:
        """(H, W, 3): what a person would look at."""
        ...

    def close(self) -> None: ...


class Lanes:
    """Single environments of one task as one `Environment`; each action lasts `action_repeat` frames.

    An episode is cut, over but not terminal, once it has had `max_frames` frames (0: never).
    """

    def __init__(self, singles: Sequence[Single], *, action_repeat: int, max_frames: int) -> None:
        self.lanes = len(singles)
        self.frame_shape = singles[0].frame_shape
        self.action_space = singles[0].action_space
        self._singles = list(singles)
        self._action_repeat = action_repeat
        self._max_frames = max_frames
        self._frames = np.zeros((self.lanes, *self.frame_shape), np.uint8)
        self._terminal = np.zeros(self.lanes, np.bool_)
        self._over = np.ones(self.lanes, np.bool_)
        self._age = np.zeros(self.lanes, np.int64)  # environment frames since the reset

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        for lane, seed in zip(lanes, seeds, strict=True):
            self._singles[lane].reset(int(seed))
            self._frames[lane] = self._singles[lane].frame()
        chosen = np.asarray(lanes, np.intp)
        self._terminal[chosen] = False
        self._over[chosen] = False
        self._age[chosen] = 0
        return self._frames[chosen]

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        rewards = np.zeros(self.lanes, np.float32)
        for lane in np.flatnonzero(~self._over):
            rewards[lane] = self._act(int(lane), np.asarray(actions[lane]))
            self._frames[lane] = self._singles[lane].frame()
        return Step(self._frames.copy(), rewards, self._terminal.copy(), self._over.copy())

    def _act(self, lane: int, action: npt.NDArray[np.generic]) -> float:
        """Repeats the action in one lane; returns the summed reward."""
        total = 0.0
        for _ in range(self._action_repeat):
            reward, terminal, over = self._singles[lane].advance(action)
            total += reward
            self._age[lane] += 1
            out_of_time = 0 < self._max_frames <= self._age[lane]
            self._terminal[lane] = terminal
            self._over[lane] = over or out_of_time
            if self._over[lane]:
                break
        return total

    def picture(self, lane: int) -> Frames:
        return self._singles[lane].picture()

    def close(self) -> None:
        for single in self._singles:
            single.close()
