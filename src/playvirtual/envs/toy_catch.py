"""A ball falls down a grid: be under it when it lands."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.image import enlarge
from playvirtual.envs.lanes import Outcome
from playvirtual.envs.protocol import ActionSpace, Frames

ROWS = COLUMNS = 10
PICTURE_SCALE = 20


class Catch:
    """One drop is one episode of 9 frames: +1 if the paddle is under the ball at the end, else −1.

    Actions 0, 1, 2 move the paddle left, not at all, right. The seed decides the ball's column.
    """

    frame_shape = (1, ROWS, COLUMNS)

    def __init__(self) -> None:
        self.action_space: ActionSpace = spaces.Discrete(3)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self._ball_row = 0
        self._ball_column = int(np.random.default_rng(seed).integers(COLUMNS))
        self._paddle = COLUMNS // 2

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), COLUMNS - 1)
        self._ball_row += 1
        landed = self._ball_row == ROWS - 1
        caught = self._ball_column == self._paddle
        return Outcome((1.0 if caught else -1.0) if landed else 0.0, landed, landed)

    def frame(self) -> Frames:
        frame = np.zeros(self.frame_shape, np.uint8)
        frame[0, ROWS - 1, self._paddle] = 255
        frame[0, self._ball_row, self._ball_column] = 255
        return frame

    def picture(self) -> Frames:
        return enlarge(self.frame().transpose(1, 2, 0), PICTURE_SCALE)

    def close(self) -> None:
        pass
