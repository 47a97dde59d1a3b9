"""Any Gymnasium environment that shows pixels."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs import gl
from playvirtual.envs.image import channels_first, enlarge, resize_area, to_gray
from playvirtual.envs.lanes import Outcome
from playvirtual.envs.protocol import ActionSpace, Frames
from playvirtual.errors import InputError, unknown

CHANNELS = (1, 3)  # gray, or red, green and blue
ALLOWED = "allowed: uint8, (H, W), (H, W, 1), (H, W, 3), (1, H, W) or (3, H, W)"
PICTURE_SIZE = 300  # pixels, at least about, where the image is smaller


class Gym:
    """One environment by its id: its observations if they are images, else what it renders as `rgb_array`.

    Images are gray or have three colours, which may come first or last, and are reduced by area to a square; four
    channels are refused, as nobody can tell colours with opacity from a stack of four frames. Discrete actions count
    from 0; a box is flattened and its finite bounds are stretched from [−1, 1].
    """

    def __init__(self, env_id: str, image_size: int, *, grayscale: bool) -> None:
        self._env, self._sees_observations = _make(env_id)
        self.action_space = _action_space(env_id, self._env.action_space)
        self._size = image_size
        self._grayscale = grayscale
        self._observation: Any = None
        with _in_one_line(env_id, "be reset"):
            self.reset(0)
        with _in_one_line(env_id, "be drawn"):
            channels = min(self._image().shape[2], 1 if grayscale else 3)
        self.frame_shape = (channels, image_size, image_size)

    def reset(self, seed: int) -> None:
        self._observation, _ = self._env.reset(seed=seed)

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        self._observation, reward, terminated, truncated, _ = self._env.step(self._translate(action))
        return Outcome(float(reward), bool(terminated), bool(terminated or truncated))

    def frame(self) -> Frames:
        image = self._image()
        if self._grayscale and image.shape[2] == 3:
            image = to_gray(image)
        return channels_first(resize_area(image, self._size))

    def picture(self) -> Frames:
        image = self._image()
        return enlarge(image, max(1, PICTURE_SIZE // max(image.shape)))

    def close(self) -> None:
        self._env.close()

    def _image(self) -> Frames:
        """(H, W, C), C = 1 or 3, at the environment's own size."""
        image = np.asarray(self._observation if self._sees_observations else self._env.render())
        if image.dtype != np.uint8 or not _is_picture(image.shape):
            raise InputError(
                f"task: the image of 'gym/{_id_of(self._env)}' is {image.dtype} of shape {image.shape}; {ALLOWED}"
            )
        if image.ndim == 2:
            return image[..., None]
        return image if image.shape[2] in CHANNELS else image.transpose(1, 2, 0)

    def _translate(self, action: npt.NDArray[np.generic]) -> Any:
        """The agent's action as the environment wants it."""
        space = self._env.action_space
        if isinstance(space, spaces.Discrete):
            return space.start + int(action)
        assert isinstance(space, spaces.Box)
        unit = (np.clip(action.astype(np.float64), -1, 1).reshape(space.shape) + 1) / 2
        return (space.low + unit * (space.high.astype(np.float64) - space.low)).astype(space.dtype)


def check_id(env_id: str) -> None:
    """Raises an `InputError` with the nearest id unless `env_id` is known, `Name-v0` or `module:Name-v0`."""
    module, _, name = env_id.rpartition(":")
    if module:
        with _in_one_line(env_id, f"import the module {module!r}"):
            import_module(module)
    if name not in gymnasium.registry:
        with suppress(ImportError):
            _register_atari()
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise unknown("task", f"gym/{env_id}", (f"gym/{known}" for known in gymnasium.registry)) from error


def _register_atari() -> None:
    """Makes Gymnasium know ale-py's games, `ALE/Pong-v5` and others, which say nothing when they start."""
    import ale_py

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@contextmanager
def _in_one_line(env_id: str, what: str) -> Iterator[None]:
    """Whatever somebody's environment raises, as bad input: the kind of error and its text."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise InputError(f"task: 'gym/{env_id}' cannot {what}: {reason}") from error


def _make(env_id: str) -> tuple[gymnasium.Env[Any, Any], bool]:
    """The environment, and whether its observations are images; if not, it renders."""
    gl.load_triton_first()
    _draw_without_display()
    with _in_one_line(env_id, "be made"):
        env = gymnasium.make(env_id, disable_env_checker=True)
        if _is_image(env_id, env.observation_space):
            return env, True
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            raise InputError(
                f"task: 'gym/{env_id}' shows no pixels; its observations are {env.observation_space} "
                "and it does not render 'rgb_array'"
            )
        env.close()
        return gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True), False


def _draw_without_display() -> None:
    """Keeps SDL, with which pygame draws into memory, from complaining that it finds no desktop where there is none."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _is_image(env_id: str, space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    if len(space.shape) == 3 and not _is_picture(space.shape) and 4 in (space.shape[0], space.shape[2]):
        raise InputError(f"task: the observations of 'gym/{env_id}' are uint8 of shape {space.shape}; {ALLOWED}")
    return _is_picture(space.shape)


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in CHANNELS or shape[0] in CHANNELS))


def _action_space(env_id: str, space: spaces.Space[Any]) -> ActionSpace:
    """What the agent chooses from."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
    raise InputError(f"task: 'gym/{env_id}' has the action space {space}; allowed: Discrete, Box with finite bounds")


def _id_of(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
