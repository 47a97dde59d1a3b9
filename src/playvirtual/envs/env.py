"""The contract of an environment: several instances of one task behind one interface, a vector env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.options import option

Frames = npt.NDArray[np.uint8]  # (N, C, H, W)
Floats = npt.NDArray[np.float32]  # (N,)
Flags = npt.NDArray[np.bool_]  # (N,)
ActionSpace: TypeAlias = "spaces.Discrete[np.int64] | spaces.Box"  # text: Discrete is generic from Gymnasium 1.3 on


@dataclass(frozen=True)
class EnvironmentConfig:
    """How the environment is shown to the agent."""

    frame_stack: int = option("frames in one observation", low=1)
    stack_fill: Literal["zeros", "repeat"] = option("what stands before an episode's first frame: zeros, or that frame")
    image_size: int = option("side of a stored frame in pixels", low=1)
    grayscale: bool = option("one gray channel instead of three colors, where the task has a choice")
    action_repeat: int = option("environment frames per action", low=1)
    max_episode_frames: int = option("an episode ends here at the latest; 0: the task's own limit", low=0)
    life_loss_is_terminal: bool = option("in training, a lost life ends the return (Atari)")
    reward_clip: float = option("training rewards are clipped to ± this; 0: not clipped", low=0)
    env_args: tuple[str, ...] = option("arguments that the environment is made with, each NAME=VALUE", default=())


class VectorStep(NamedTuple):
    """The result of one action in each of N environments, in the order of the actions.

    The arrays belong to the caller and never change later.
    A lost life is `terminated and not done`; a time limit is `done and not terminated`.
    """

    frames: Frames  # (N, C, H, W): the newest frame alone; `FrameStack` makes observations of frames
    rewards: Floats  # (N,): as the task gives them, unclipped, summed over the action repeat
    terminated: Flags  # (N,): nothing to bootstrap from (the end of a game or, in training, a lost life)
    done: Flags  # (N,): the episode has ended, terminated or truncated; the environment waits for a reset


class VectorEnv(Protocol):
    """N environments of one task, stepped together and reset one by one.

    An environment that is done, or was never reset, keeps its frame, with reward 0 and `done`, until it is reset.
    """

    num_envs: int
    frame_shape: tuple[int, int, int]  # (C, H, W) of one frame
    action_space: ActionSpace  # of one environment

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> Frames:
        """Starts a new episode in each of the environments `indices` and returns their first frames.

        The seed, 0 … 2³¹ − 1, alone decides what happens in an episode. Indices may have any order, each at most once.
        """
        ...

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        """Takes one action per environment: (N,) integers for a discrete space, (N, A) floats for a box.

        With `indices`, each at most once, only those environments are stepped: the n-th action is the one of
        environment indices[n], and the result has as many rows as there are actions.
        """
        ...

    def render(self, index: int) -> Frames:
        """(H, W, 3): the image of one environment for people to look at, for example in a video."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ResetsInBackground(Protocol):
    """A vector env that can start its next reset while the present episode is played."""

    def prepare_reset(self, seed: int) -> None: ...


def to_native(action: npt.NDArray[np.generic], space: spaces.Space[Any]) -> Any:
    """An agent's action, which counts from 0 or lies in [−1, 1]ᴬ, in the action space that the environment declares."""
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(action)
    assert isinstance(space, spaces.Box)
    unit = (np.clip(action.astype(np.float64), -1, 1).reshape(space.shape) + 1) / 2
    native = space.low + unit * (space.high.astype(np.float64) - space.low)
    whole = np.issubdtype(space.dtype, np.integer)  # to the nearest one: cut off, it would hardly ever be the highest
    return (np.rint(native) if whole else native).astype(space.dtype)


def action_names(env: VectorEnv) -> tuple[str, ...]:
    """The names of an environment's discrete actions, where it has an attribute `action_names`; else none."""
    names = getattr(env, "action_names", ())
    count = int(env.action_space.n) if isinstance(env.action_space, spaces.Discrete) else 0
    return tuple(map(str, names)) if isinstance(names, list | tuple) and len(names) == count else ()


def describe_space(space: ActionSpace) -> dict[str, Any]:
    """The space as JSON can hold it: the number of actions, or the bounds of a box."""
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n)}
    return {"low": space.low.tolist(), "high": space.high.tolist()}


def space_from_description(record: Mapping[str, Any]) -> ActionSpace:
    """The space that `describe_space` described."""
    if "n" in record:
        return spaces.Discrete(int(record["n"]))
    low, high = (np.asarray(record[key], dtype=np.float32) for key in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


NativeSpace = spaces.Space[Any]  # what an environment declares: Discrete with any start, Box of any shape and type


def describe_native_space(space: NativeSpace) -> dict[str, Any]:
    """An environment's own action space as JSON can hold it."""
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    assert isinstance(space, spaces.Box)
    low, high = (bound.astype(np.float64).ravel().tolist() for bound in (space.low, space.high))
    return {"low": low, "high": high, "shape": list(space.shape), "dtype": str(space.dtype)}
