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
from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames
from playvirtual.envs.image import channels_first, enlarge, resize_area, to_gray
from playvirtual.envs.registry import EnvFamily
from playvirtual.envs.vector import EnvStep
from playvirtual.errors import InputError, unknown

CHANNELS = (1, 3)  # gray, or red, green and blue
ALLOWED = "allowed: uint8, (H, W), (H, W, 1), (H, W, 3), (1, H, W) or (3, H, W)"
RENDER_SIZE = 300  # pixels, about, to which a smaller image is enlarged


class GymEnv:
    """A Gymnasium environment: its observations if they are images, else what it renders as `rgb_array`.

    Images are gray or have three colours, first or last, and are reduced by area to a square; four channels are
    refused, as they may be colours with opacity or a stack of four frames. Discrete actions count from 0; a box is
    flattened and its finite bounds are scaled to [−1, 1].
    """

    def __init__(self, env: gymnasium.Env[Any, Any], task: str, image_size: int, *, grayscale: bool) -> None:
        """`task` is the name that errors give."""
        self._env, self._task = env, task
        self._sees_observations = _is_image_space(task, env.observation_space)
        self.action_space = _action_space(task, env.action_space)
        self._size = image_size
        self._grayscale = grayscale
        self._observation: Any = None
        self.time_limit = _time_limit(env)
        self.action_names = getattr(env.unwrapped, "action_names", ())
        self._shape: tuple[int, ...] | None = None  # of every image, known from the first
        self._highest = _highest(env.observation_space) if self._sees_observations else 255
        with _in_one_line(task, "be reset"):
            self.reset(0)
        with _in_one_line(task, "be drawn"):
            channels = min(self._image().shape[2], 1 if grayscale else 3)
        self.frame_shape = (channels, image_size, image_size)

    def reset(self, seed: int) -> None:
        self._observation, _ = self._env.reset(seed=seed)

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        self._observation, reward, terminated, truncated, _ = self._env.step(self._env_action(action))
        return EnvStep(float(reward), bool(terminated), bool(terminated or truncated))

    def frame(self) -> Frames:
        image = self._image()
        if self._grayscale and image.shape[2] == 3:
            image = to_gray(image)
        return channels_first(resize_area(image, self._size))

    def render(self) -> Frames:
        image = self._image()
        return enlarge(image, max(1, RENDER_SIZE // max(image.shape)))

    def close(self) -> None:
        self._env.close()

    def _image(self) -> Frames:
        """(H, W, C), C = 1 or 3, at the environment's own size."""
        image = np.asarray(self._observation if self._sees_observations else self._env.render())
        if image.dtype != np.uint8 or not _is_image_shape(image.shape):
            raise InputError(f"task: the image of {self._task!r} is {image.dtype} of shape {image.shape}; {ALLOWED}")
        self._shape = self._shape or (self._env.observation_space.shape if self._sees_observations else image.shape)
        if image.shape != self._shape:
            raise InputError(f"task: the image of {self._task!r} has shape {image.shape}; allowed: {self._shape}")
        if self._highest < 255 and image.max(initial=0) > self._highest:
            raise InputError(
                f"task: the image of {self._task!r} has the value {image.max()}; allowed: 0 to {self._highest}, as its "
                "observation space says"
            )
        if image.ndim == 2:
            return image[..., None]
        return image if image.shape[2] in CHANNELS else image.transpose(1, 2, 0)

    def _env_action(self, action: npt.NDArray[np.generic]) -> Any:
        """The agent's action in the environment's own action space."""
        space = self._env.action_space
        if isinstance(space, spaces.Discrete):
            return space.start + int(action)
        assert isinstance(space, spaces.Box)
        unit = (np.clip(action.astype(np.float64), -1, 1).reshape(space.shape) + 1) / 2
        return (space.low + unit * (space.high.astype(np.float64) - space.low)).astype(space.dtype)


def _time_limit(env: gymnasium.Env[Any, Any]) -> int:
    """The steps after which an environment truncates its episodes, as far as it says so; 0: it does not."""
    limits = [env.spec.max_episode_steps, env.spec.kwargs.get("max_num_frames_per_episode")] if env.spec else []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min((int(limit) for limit in limits if limit), default=0)


def _highest(space: spaces.Space[Any]) -> int:
    """The largest value of an image space."""
    assert isinstance(space, spaces.Box)
    return int(space.high.max(initial=0))


def make_by_id(env_id: str, config: EnvironmentConfig) -> GymEnv:
    """The environment that Gymnasium knows as `Name-v0` or `module:Name-v0`."""
    task = f"gym/{env_id}"
    return GymEnv(_make(env_id, task), task, config.image_size, grayscale=config.grayscale)


def wrap(env: gymnasium.Env[Any, Any], task: str, config: EnvironmentConfig) -> GymEnv:
    """An environment that is made already; one without image observations must have the render_mode `rgb_array`."""
    gl.load_triton_first()
    _draw_without_display()
    if not _is_image_space(task, env.observation_space) and env.render_mode != "rgb_array":
        raise InputError(
            f"task: {task!r} shows no pixels; its observations are {env.observation_space} and its render_mode is "
            f"{env.render_mode!r}; allowed: image observations, or the render_mode 'rgb_array'"
        )
    return GymEnv(env, task, config.image_size, grayscale=config.grayscale)


def check_id(env_id: str) -> None:
    """Raises an `InputError` with the nearest id unless `env_id` is known, `Name-v0` or `module:Name-v0`."""
    module, _, name = env_id.rpartition(":")
    if module:
        with _in_one_line(f"gym/{env_id}", f"import the module {module!r}"):
            import_module(module)
    if name not in gymnasium.registry:
        with suppress(ImportError):
            _register_atari()
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise unknown("task", f"gym/{env_id}", (f"gym/{known}" for known in gymnasium.registry)) from error


def _register_atari() -> None:
    """Registers ale-py's games, `ALE/Pong-v5` and others, with Gymnasium, and silences the emulator's banner."""
    import ale_py

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@contextmanager
def _in_one_line(task: str, what: str) -> Iterator[None]:
    """Turns any error of a foreign environment into an `InputError` with the error's type and text in one line."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise InputError(f"task: {task!r} cannot {what}: {reason}") from error


def _make(env_id: str, task: str) -> gymnasium.Env[Any, Any]:
    """The environment, which renders if its observations are not images."""
    gl.load_triton_first()
    _draw_without_display()
    with _in_one_line(task, "be made"):
        env = gymnasium.make(env_id, disable_env_checker=True)
        if _is_image_space(task, env.observation_space):
            return env
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            raise InputError(
                f"task: {task!r} shows no pixels; its observations are {env.observation_space} "
                "and it does not render 'rgb_array'"
            )
        env.close()
        return gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True)


def _draw_without_display() -> None:
    """Makes SDL, with which pygame draws into memory, silent where there is no display."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _is_image_space(task: str, space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    if len(space.shape) == 3 and not _is_image_shape(space.shape) and 4 in (space.shape[0], space.shape[2]):
        raise InputError(f"task: the observations of {task!r} are uint8 of shape {space.shape}; {ALLOWED}")
    return _is_image_shape(space.shape)


def _is_image_shape(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in CHANNELS or shape[0] in CHANNELS))


def _action_space(task: str, space: spaces.Space[Any]) -> ActionSpace:
    """The agent's action space."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
    raise InputError(f"task: {task!r} has the action space {space}; allowed: Discrete, Box with finite bounds")


# Nothing is known of an environment before it is made: neither its kind of action space nor whether its steps are slow
# enough to pay for worker processes.
FAMILY = EnvFamily(tasks=None, make=make_by_id, check_task=check_id)
