"""Any Gymnasium environment that shows pixels."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from playvirtual.envs.arguments import as_keywords
from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames, to_native
from playvirtual.envs.families import gl
from playvirtual.envs.image import channels_last, enlarge, image_to_frame
from playvirtual.envs.modules import import_named, refuse_file
from playvirtual.envs.observations import ALLOWED, ObservedParts, is_image_shape, shows_images
from playvirtual.envs.registry import EnvFamily
from playvirtual.envs.vector import EnvStep
from playvirtual.errors import InputError, shown

RENDER_SIZE = 300  # pixels, about, to which a smaller image is enlarged


class GymEnv:
    """A Gymnasium environment: its observations if they are images, else what it renders as `rgb_array`.

    Images are gray or have three colors, first or last, and are reduced by area to a square; four channels are
    refused, as they may be colors with opacity or a stack of four frames. Discrete actions count from 0; a box is
    flattened and its finite bounds are scaled to [−1, 1]. Observations may be a Dict of one image and vectors, whose
    numbers follow the colors as planes of a frame.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], task: str, image_size: int, *, grayscale: bool) -> None:
        """`task` is the name that errors give."""
        self._env, self._task = env, task
        space = env.observation_space
        self._parts = ObservedParts(task, space) if shows_images(task, space) else None  # None: what it renders is seen
        self.numbers = self._parts.count if self._parts is not None else 0  # beside the image
        self.action_space = _action_space(task, env.action_space)
        self.native_action_space = env.action_space
        self.observed_parts = self._parts.describe() if self._parts is not None else None
        self.unseen = "" if self._parts is not None else _described(space)  # observations that no agent gets to see
        self._observation: Any = None
        self.time_limit = _time_limit(env)
        self.action_names = getattr(env.unwrapped, "action_names", ())
        self._shape: tuple[int, ...] | None = None  # of every image that it renders, known from the first
        with in_one_task_line(task, "be reset"):
            self.reset(0)
        with in_one_task_line(task, "be drawn"):
            height, width, colors = self._image().shape
        self.image_shape = (colors, height, width)  # of the environment's own images
        channels = min(colors, 1 if grayscale else 3) + self.numbers
        self.frame_shape = (channels, image_size, image_size)

    def reset(self, seed: int) -> None:
        returned = self._env.reset(seed=seed)
        if not isinstance(returned, tuple | list) or len(returned) != 2:  # what environments of the older Gym return
            raise InputError(
                f"reset: {_what(returned)} is returned by {self._task!r}; allowed: a tuple (observation, info)"
            )
        self._observation, _ = returned

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        returned = self._env.step(to_native(action, self.native_action_space))
        if not isinstance(returned, tuple | list) or len(returned) != 5:
            raise InputError(
                f"step: {_what(returned)} is returned by {self._task!r}; allowed: a tuple (observation, reward, "
                "terminated, truncated, info)"
            )
        self._observation, reward, terminated, truncated, _ = returned
        if reward is None or getattr(reward, "ndim", 0) > 0:
            raise InputError(
                f"reward: {shown(reward)} is not allowed, given by {self._task!r}; allowed: a finite number"
            )
        return EnvStep(float(reward), bool(terminated), bool(terminated or truncated))

    def frame(self) -> Frames:
        if self._parts is None:
            return image_to_frame(self._image(), self.frame_shape)
        return self._parts.frame(self._observation, self.frame_shape)

    def render(self) -> Frames:
        image = self._image()
        return enlarge(image, max(1, RENDER_SIZE // max(image.shape)))

    def close(self) -> None:
        self._env.close()

    def _image(self) -> Frames:
        """(H, W, C), C = 1 or 3, at the environment's own size."""
        if self._parts is not None:
            return self._parts.image(self._observation)
        image = np.asarray(self._env.render())
        if image.dtype != np.uint8 or not is_image_shape(image.shape):
            raise InputError(f"task: the image of {self._task!r} is {image.dtype} of shape {image.shape}; {ALLOWED}")
        self._shape = self._shape or image.shape
        if image.shape != self._shape:
            raise InputError(f"task: the image of {self._task!r} has shape {image.shape}; allowed: {self._shape}")
        return channels_last(image)


def _what(returned: Any) -> str:
    """What an environment has returned, in a few words."""
    kind = type(returned).__name__
    return f"a {kind} of {len(returned)}" if isinstance(returned, tuple | list) else f"one {kind}"


def _time_limit(env: gymnasium.Env[Any, Any]) -> int:
    """The steps after which an environment truncates its episodes, as far as it says so; 0: it does not."""
    limits = [env.spec.max_episode_steps, env.spec.kwargs.get("max_num_frames_per_episode")] if env.spec else []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min((int(limit) for limit in limits if limit), default=0)


def make_by_id(env_id: str, config: EnvironmentConfig) -> GymEnv:
    """The environment that Gymnasium knows as `Name-v0` or `module:Name-v0`."""
    task = f"gym/{env_id}"
    env = _make(env_id, task, as_keywords(config.env_args))
    return GymEnv(env, task, config.image_size, grayscale=config.grayscale)


def wrap(env: gymnasium.Env[Any, Any], task: str, config: EnvironmentConfig) -> GymEnv:
    """An environment that is made already; one without image observations must have the render_mode `rgb_array`."""
    prepare_drawing()
    if not shows_images(task, env.observation_space) and env.render_mode != "rgb_array":
        raise InputError(
            f"task: {task!r} shows no pixels; its observations are {env.observation_space} and its render_mode is "
            f"{env.render_mode!r}; allowed: image observations (uint8, (H, W, 3) or the like), or the render_mode "
            "'rgb_array' and a method render()"
        )
    return GymEnv(env, task, config.image_size, grayscale=config.grayscale)


def check_id(env_id: str) -> None:
    """Raises an `InputError` that says what to do unless `env_id` is known, `Name-v0` or `module:Name-v0`."""
    module, _, name = env_id.rpartition(":")
    if module:
        refuse_file(f"gym/{env_id}")
        import_named(f"gym/{env_id}", module)
    if name not in gymnasium.registry:
        with suppress(ImportError):
            _register_atari()
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise _unknown_id(env_id, module, name) from error


def _unknown_id(env_id: str, module: str, name: str) -> InputError:
    """The error for an id that Gymnasium does not know: the nearest id, and how to make an own environment known."""
    same, by_name = _without_version(name), {_without_version(known): known for known in gymnasium.registry}
    nearest = by_name.get(same) or next((by_name[n] for n in get_close_matches(same, by_name, n=1, cutoff=0.75)), None)
    hint = f"did you mean 'gym/{nearest}'? " if nearest else ""
    if module:
        own = [known for known, spec in gymnasium.registry.items() if _defining_module(spec) == module]
        what = f"the module {module!r} registers {', '.join(own)}" if own else f"{module!r} registers none of its own"
        return InputError(
            f"task: 'gym/{env_id}' is not known; {hint}{what}; allowed: an id that it registers, or "
            f"env/{module}:CLASS, which needs no registering"
        )
    return InputError(
        f"task: 'gym/{env_id}' is not known; {hint}allowed: an id that Gymnasium knows; for an environment of your "
        f"own: gym/MODULE:{name} or --import MODULE with the module that registers it, or env/MODULE:CLASS, which "
        "needs no registering"
    )


def _without_version(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id).lower()


def _defining_module(spec: EnvSpec) -> str:
    """The module of the class or function that makes an environment."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def _register_atari() -> None:
    """Registers ale-py's games, `ALE/Pong-v5` and others, with Gymnasium, and silences the emulator's banner."""
    import ale_py

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@contextmanager
def in_one_task_line(task: str, what: str) -> Iterator[None]:
    """Turns any error of a foreign environment into an `InputError` with the error's type and text in one line."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise InputError(f"task: {task!r} cannot {what}: {reason}") from error


def _make(env_id: str, task: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, which renders if its observations are not images."""
    prepare_drawing()
    with in_one_task_line(task, "be made"):
        env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
        if shows_images(task, env.observation_space) or env.render_mode == "rgb_array":
            return env
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            raise InputError(
                f"task: {task!r} shows no pixels; its observations are {env.observation_space} "
                "and it does not render 'rgb_array'"
            )
        env.close()
        return gymnasium.make(env_id, disable_env_checker=True, **{**arguments, "render_mode": "rgb_array"})


def prepare_drawing() -> None:
    """Makes what environments may draw with safe to load, and SDL, pygame's, silent where there is no display."""
    gl.load_triton_first()
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        # Not "dummy" alone: some environments, such as highway-env's, draw nothing where they read that.
        os.environ.setdefault("SDL_VIDEODRIVER", "offscreen,dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # Gymnasium before 1.3 opens a sound card, and complains


def _described(space: spaces.Space[Any]) -> str:
    """As in "float32 of shape (4,)", or the kind of a space that is more than an array."""
    return f"{space.dtype} of shape {space.shape}" if isinstance(space, spaces.Box) else f"a {type(space).__name__}"


def _action_space(task: str, space: spaces.Space[Any]) -> ActionSpace:
    """The agent's action space."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),), np.float32)
    hint = ""
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        hint = "; gymnasium.wrappers.TransformAction can number the combinations, see docs/your-environment.md"
    elif isinstance(space, spaces.Box):
        hint = ", which gymnasium.wrappers.TransformAction can give it"
    raise InputError(f"task: {task!r} has the action space {space}; allowed: Discrete, Box with finite bounds{hint}")


# Nothing is known of an environment before it is made: neither its kind of action space nor whether its steps are slow
# enough to pay for worker processes.
FAMILY = EnvFamily(tasks=None, make=make_by_id, check_task=check_id, takes_env_args=True, fitted=True)
