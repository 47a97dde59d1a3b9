"""MinAtar games: 10×10 pixels with one channel per kind of thing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.image import channels_first, enlarge
from playvirtual.envs.lanes import Outcome
from playvirtual.envs.protocol import ActionSpace, Frames

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
PICTURE_SCALE = 20
BACKGROUND = (16, 16, 24)
# One colour per channel; the game with the most channels has ten.
PALETTE = np.array(
    [
        (86, 180, 233),
        (230, 159, 0),
        (120, 120, 140),
        (0, 158, 115),
        (213, 94, 0),
        (240, 228, 66),
        (204, 121, 167),
        (0, 114, 178),
        (160, 220, 120),
        (255, 255, 255),
    ],
    np.uint8,
)


class MinAtar:
    """One game with the package's defaults: minimal actions, sticky with chance 0.1, growing difficulty.

    The package ends no episode by time but in Freeway, after 2,500 frames; a good player of the others may
    never stop without a limit of our own.
    """

    def __init__(self, game: str) -> None:
        self._world = _world(game)
        self._world.seed(0)  # from now on the package and the game draw from one source
        self._actions = self._world.minimal_action_set()
        height, width, channels = self._world.state_shape()
        self.frame_shape = (channels, height, width)
        self.action_space: ActionSpace = spaces.Discrete(len(self._actions))

    def reset(self, seed: int) -> None:
        # The package's own reset keeps the last action, which a sticky one would repeat. A new world, or a new random
        # state, would do as well but asks the operating system for a seed that nobody needs (100 µs each).
        self._world.last_action = 0
        self._world.random.seed(seed)
        self._world.reset()

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        reward, ended = self._world.act(self._actions[int(action)])
        return Outcome(float(reward), bool(ended), bool(ended))

    def frame(self) -> Frames:
        return channels_first(self._world.state().astype(np.uint8) * 255)

    def picture(self) -> Frames:
        """The grid in colours; where things overlap, the later channel is on top."""
        state = self._world.state()
        grid = np.empty((*state.shape[:2], 3), np.uint8)
        grid[:] = BACKGROUND
        for channel in range(state.shape[2]):
            grid[state[..., channel]] = PALETTE[channel]
        return enlarge(grid, PICTURE_SCALE)

    def close(self) -> None:
        pass


def _world(game: str) -> Any:
    with _interrupt_later():
        import minatar

    return minatar.Environment(game)


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Ctrl-C inside the block counts after it: MinAtar takes what is raised while it imports for a lack of plots."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # nothing is raised here
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)
