"""The last few frames of every lane as one observation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from playvirtual.envs.protocol import Flags, Frames


class FrameStack:
    """Observations of N lanes, (N, depth·C, H, W), oldest frame first.

    Before a start there are zeros or, with `repeat_first`, the first frame again. A start is a reset or, in
    training, a lost life: `clear` the lane, then `push` its newest frame.
    """

    def __init__(
        self, lanes: int, depth: int, frame_shape: tuple[int, int, int], *, repeat_first: bool = False
    ) -> None:
        channels, height, width = frame_shape
        self._history = np.zeros((lanes, depth, channels, height, width), np.uint8)
        self._observations = self._history.reshape(lanes, depth * channels, height, width)
        self._repeat_first = repeat_first
        self._empty = np.ones(lanes, np.bool_)  # lanes whose next frame is a first one

    @property
    def observations(self) -> Frames:
        """(N, depth·C, H, W): a view, which the next `push` or `clear` changes; copy it to keep it."""
        return self._observations

    def clear(self, lanes: Sequence[int] | Flags) -> None:
        """Forgets the history of some lanes, given as indices or as a mask of N flags."""
        self._history[self._indices(lanes)] = 0
        self._empty[self._indices(lanes)] = True

    def push(self, frames: Frames, lanes: Sequence[int] | Flags | None = None) -> Frames:
        """Appends each lane's newest frame, (N, C, H, W), or that of some lanes; returns `observations`."""
        pushed = slice(None) if lanes is None else self._indices(lanes)
        if isinstance(pushed, slice):
            _append(self._history, frames)
        else:
            for lane, frame in zip(pushed, frames, strict=True):
                _append(self._history[lane : lane + 1], frame)
        if self._repeat_first and self._empty[pushed].any():
            first = np.arange(len(self._empty))[pushed][self._empty[pushed]]
            self._history[first] = self._history[first, -1:]
        self._empty[pushed] = False
        return self._observations

    def _indices(self, lanes: Sequence[int] | Flags) -> npt.NDArray[np.intp]:
        chosen = np.asarray(lanes)
        return np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.intp)


def _append(history: Frames, frames: Frames) -> None:
    """Moves (N, depth, C, H, W) one frame on in place, slot by slot: numpy buffers overlapping copies."""
    for slot in range(history.shape[1] - 1):
        history[:, slot] = history[:, slot + 1]
    history[:, -1] = frames
