"""A lane whose next episode is got ready while the present one is played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from playvirtual.envs.protocol import Environment, Frames, Step


class Ahead:
    """One lane on two environments that take turns, for those whose reset is slow and leaves the interpreter free.

    A seed decides how an episode goes, so it does not matter which of the two it is played on, nor when it was reset.
    """

    lanes = 1

    def __init__(self, make: Callable[[], Environment]) -> None:
        """`make` builds one lane; the second one is built when it is first needed."""
        self._make = make
        self._playing = make()
        self._spare: Environment | None = None
        self._ready: tuple[int, Future[Frames]] | None = None  # a seed, and the first frame of its episode
        self._thread = ThreadPoolExecutor(1, "reset")
        self.frame_shape = self._playing.frame_shape
        self.action_space = self._playing.action_space

    def prepare(self, seed: int) -> None:
        """Begins to get ready for the episode of that seed; the next `reset` should ask for it."""
        self._take()  # what was prepared before in vain: one at a time
        self._ready = seed, self._thread.submit(self._reset_spare, seed)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        if not lanes:
            return self._playing.reset(lanes, seeds)
        prepared = self._take()
        if prepared is None or prepared[0] != seeds[0]:
            return self._playing.reset(lanes, seeds)
        assert self._spare is not None
        self._playing, self._spare = self._spare, self._playing
        return prepared[1]

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        return self._playing.step(actions)

    def picture(self, lane: int) -> Frames:
        return self._playing.picture(lane)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        for environment in (self._playing, self._spare):
            if environment is not None:
                environment.close()

    def _reset_spare(self, seed: int) -> Frames:
        if self._spare is None:
            self._spare = self._make()
        return self._spare.reset([0], [seed])

    def _take(self) -> tuple[int, Frames] | None:
        """Waits for what was prepared, if anything was; what went wrong there is raised here."""
        if self._ready is None:
            return None
        (seed, frames), self._ready = self._ready, None
        return seed, frames.result()
