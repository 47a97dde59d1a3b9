"""Vector envs of single environments in this process, resets in the background, and frame stacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from playvirtual.envs.env import ActionSpace, Flags, Frames, VectorEnv, VectorStep, action_names
from playvirtual.errors import EnvError, InputError, in_one_line, shown

LARGEST_REWARD = float(np.finfo(np.float32).max)


class EnvStep(NamedTuple):
    """The result of one environment frame."""

    reward: float
    terminated: bool  # the episode has ended and there is nothing to bootstrap from; implies `done`
    done: bool  # terminated or truncated


class SingleEnv(Protocol):
    """One environment. `step` does not render, so that a frame which is never read is never drawn.

    It may have these attributes beside those of the contract:
    - `time_limit`: the frames after which every episode has ended; 0 or none: episodes that are scored are truncated
      after `making.EVALUATION_LIMIT`
    - `action_names`: of discrete actions, for videos
    - `native_action_space`: what the simulator's own `step` takes, where that is another space than `action_space`
    - `observed_parts`: the parts of observations that are a Dict, as `ObservedParts.describe` gives them
    - `unseen`: what its observations are, for a message, where the agent sees a rendering in their place; else ""
    - `image_shape`, `numbers`: (C, H, W) of its images at their own size, and how many numbers stand beside the image
    """

    frame_shape: tuple[int, int, int]  # (C, H, W)
    action_space: ActionSpace  # Discrete, or a Box between −1 and 1

    def reset(self, seed: int) -> None:
        """Starts a new episode that is decided by the seed alone."""
        ...

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        """Steps by one environment frame: a 0-d integer array for a discrete space, (A,) floats for a box."""
        ...

    def frame(self) -> Frames:
        """(C, H, W): what the agent sees now."""
        ...

    def render(self) -> Frames:
        """(H, W, 3): what a person would look at."""
        ...

    def close(self) -> None: ...


class SyncVectorEnv:
    """Single environments of one task as a `VectorEnv`, stepped one after another.

    Each action is repeated for `action_repeat` frames. An episode is truncated (done, not terminated) once it has had
    `max_frames` frames; 0 means never. Whatever comes from an environment is checked here: an `EnvError` names the
    `task`, the frame of the episode and what is wrong.
    """

    def __init__(
        self, envs: Sequence[SingleEnv], *, action_repeat: int, max_frames: int, task: str = "the environment"
    ) -> None:
        self._task = task
        self.num_envs = len(envs)
        self.frame_shape = envs[0].frame_shape
        self.action_space = envs[0].action_space
        # What the simulator's own `step` takes, where that is another space than the agent's.
        self.native_action_space = getattr(envs[0], "native_action_space", self.action_space)
        self.observed_parts = getattr(envs[0], "observed_parts", None)  # of observations that are a Dict, described
        self.action_names: Sequence[str] = getattr(envs[0], "action_names", ())
        self._envs = list(envs)
        self._action_repeat = action_repeat
        self._max_frames = max_frames
        self._frames = np.zeros((self.num_envs, *self.frame_shape), np.uint8)
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._done = np.ones(self.num_envs, np.bool_)
        self._age = np.zeros(self.num_envs, np.int64)  # environment frames since the reset

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> Frames:
        for index, seed in zip(indices, seeds, strict=True):
            self._age[index] = 0
            try:
                self._envs[index].reset(int(seed))
            except (Exception, SystemExit) as error:
                self._fail(index, f"in reset(seed={seed})", error)
            self._frames[index] = self._frame(index)
        chosen = np.asarray(indices, np.intp)
        self._terminated[chosen] = False
        self._done[chosen] = False
        return self._frames[chosen]

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        chosen = np.arange(self.num_envs) if indices is None else np.asarray(indices, np.intp)
        rewards = np.zeros(len(chosen), np.float32)
        for place, index in enumerate(chosen.tolist()):
            if not self._done[index]:
                rewards[place] = self._repeat(index, np.asarray(actions[place]))
                self._frames[index] = self._frame(index)
        return VectorStep(self._frames[chosen], rewards, self._terminated[chosen], self._done[chosen])

    def _repeat(self, index: int, action: npt.NDArray[np.generic]) -> float:
        """Repeats the action in one environment; returns the summed reward."""
        total = 0.0
        for _ in range(self._action_repeat):
            self._age[index] += 1
            try:
                reward, terminated, done = self._envs[index].step(action)
                total += float(reward)
            except (Exception, SystemExit) as error:
                self._fail(index, f"with the action {shown(action.tolist())}", error)
            if not abs(total) <= LARGEST_REWARD:  # NaN too
                raise EnvError(
                    f"reward: {shown(reward)} is not allowed, given by {self._task!r} at frame {self._age[index]} of "
                    "an episode; allowed: a finite number"
                )
            out_of_time = 0 < self._max_frames <= self._age[index]
            self._terminated[index] = terminated
            self._done[index] = done or out_of_time
            if self._done[index]:
                break
        return total

    def _frame(self, index: int) -> Frames:
        """The present frame of one environment, of the shape and type that it has declared."""
        try:
            frame = self._envs[index].frame()
        except (Exception, SystemExit) as error:
            self._fail(index, "to show a frame", error)
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape != self.frame_shape:
            found = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else shown(frame)
            raise EnvError(
                f"observation: {found} is not allowed, given by {self._task!r} at frame {self._age[index]} of an "
                f"episode; allowed: uint8 of shape {self.frame_shape}"
            )
        return frame

    def _fail(self, index: int, how: str, error: BaseException) -> NoReturn:
        """Raises what an environment has raised as an EnvError that names the task and the frame.

        Memory that has run out, and what is an EnvError already, stay what they are.
        """
        if isinstance(error, MemoryError | EnvError):
            raise error
        at = f"at frame {self._age[index]} of an episode"
        if isinstance(error, InputError):  # it says in one line what is wrong already
            raise EnvError(f"{error}; {at}") from error
        raise EnvError(f"environment: {self._task!r} failed {at}, {how}: {in_one_line(error)}") from error

    def render(self, index: int) -> Frames:
        try:
            return self._envs[index].render()
        except (Exception, SystemExit) as error:
            self._fail(index, "to render", error)

    def close(self) -> None:
        close_all(self._envs, self._task)


def close_all(envs: Sequence[SingleEnv], task: str) -> None:
    """Closes environments that have done their work: what they raise in it is one message, and loses no result."""
    errors = []
    for env in envs:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            errors.append(error)
    if errors:
        _warn_not_closed(task, in_one_line(errors[0]))


@cache
def _warn_not_closed(task: str, reason: str) -> None:
    """Warns once of a task that cannot be closed, not after every evaluation."""
    logging.getLogger("playvirtual").warning("%r cannot be closed: %s", task, reason)


class BackgroundReset:
    """One environment with two instances in turn: a thread resets one while the other is played.

    It pays where a reset is slow and releases Python's lock. A seed decides what happens in an episode, so
    neither its instance nor the time of the reset matters.
    """

    num_envs = 1

    def __init__(self, make: Callable[[], VectorEnv]) -> None:
        """`make` makes a vector env of one environment; the second one is made when it is first needed."""
        self._make = make
        self._playing = make()
        self._spare: VectorEnv | None = None
        self._prepared: tuple[int, Future[Frames]] | None = None  # a seed, and the first frame of its episode
        self._thread = ThreadPoolExecutor(1, "reset")
        self.frame_shape = self._playing.frame_shape
        self.action_space = self._playing.action_space
        self.action_names = action_names(self._playing)

    def prepare_reset(self, seed: int) -> None:
        """Starts the reset to the episode of that seed; the next `reset` should ask for it."""
        self._wait()  # an earlier reset that was never asked for: there is one spare instance
        self._prepared = seed, self._thread.submit(self._reset_spare, seed)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> Frames:
        if not indices:
            return self._playing.reset(indices, seeds)
        prepared = self._wait()
        if prepared is None or prepared[0] != seeds[0]:
            return self._playing.reset(indices, seeds)
        assert self._spare is not None
        self._playing, self._spare = self._spare, self._playing
        return prepared[1]

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        return self._playing.step(actions, indices)

    def render(self, index: int) -> Frames:
        return self._playing.render(index)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        for env in (self._playing, self._spare):
            if env is not None:
                env.close()

    def _reset_spare(self, seed: int) -> Frames:
        if self._spare is None:
            self._spare = self._make()
        return self._spare.reset([0], [seed])

    def _wait(self) -> tuple[int, Frames] | None:
        """The seed and frame of the reset in the background, once it is complete; raises the error it ended with."""
        if self._prepared is None:
            return None
        (seed, frames), self._prepared = self._prepared, None
        return seed, frames.result()


class FrameStack:
    """Observations of N environments, (N, depth·C, H, W), oldest frame first.

    The frames before a start are zeros or, with `repeat_first`, copies of the first frame. A start is a reset or, in
    training, a lost life: `clear` the environment's history, then `push` its newest frame.
    """

    def __init__(
        self, num_envs: int, depth: int, frame_shape: tuple[int, int, int], *, repeat_first: bool = False
    ) -> None:
        channels, height, width = frame_shape
        self._history = np.zeros((num_envs, depth, channels, height, width), np.uint8)
        self._observations = self._history.reshape(num_envs, depth * channels, height, width)
        self._repeat_first = repeat_first
        self._empty = np.ones(num_envs, np.bool_)  # environments whose next frame is a first one

    @property
    def observations(self) -> Frames:
        """(N, depth·C, H, W): a view, which the next `push` or `clear` changes; copy it to keep it."""
        return self._observations

    def clear(self, indices: Sequence[int] | Flags) -> None:
        """Forgets the history of some environments, given as indices or as a mask of N flags."""
        chosen = _as_indices(indices)
        self._history[chosen] = 0
        self._empty[chosen] = True

    def push(self, frames: Frames, indices: Sequence[int] | Flags | None = None) -> Frames:
        """Appends the newest frame, (N, C, H, W), of all environments or of some; returns `observations`."""
        chosen = slice(None) if indices is None else _as_indices(indices)
        if isinstance(chosen, slice):
            _append(self._history, frames)
        else:
            for index, frame in zip(chosen, frames, strict=True):
                _append(self._history[index : index + 1], frame)
        if self._repeat_first and self._empty[chosen].any():
            first = np.arange(len(self._empty))[chosen][self._empty[chosen]]
            self._history[first] = self._history[first, -1:]
        self._empty[chosen] = False
        return self._observations


def _as_indices(indices: Sequence[int] | Flags) -> npt.NDArray[np.intp]:
    chosen = np.asarray(indices)
    return np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.intp)


def _append(history: Frames, frames: Frames) -> None:
    """Shifts (N, depth, C, H, W) by one frame in place, slot by slot: NumPy buffers overlapping copies."""
    for slot in range(history.shape[1] - 1):
        history[:, slot] = history[:, slot + 1]
    history[:, -1] = frames
