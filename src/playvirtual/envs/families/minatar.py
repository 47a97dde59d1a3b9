"""MinAtar games: 10×10 pixels with one channel per kind of object."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.arguments import as_keywords
from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames
from playvirtual.envs.image import channels_first, enlarge, newest_to_frame
from playvirtual.envs.registry import EnvFamily, require_options
from playvirtual.envs.vector import EnvStep
from playvirtual.errors import InputError, shown, unknown

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
RENDER_SCALE = 20
BACKGROUND = (16, 16, 24)
# One color per channel; the game with the most channels has ten.
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


ALLOWED_ARGUMENTS = {"sticky_action_prob": "0 to 1", "difficulty_ramping": "true, false"}
ACTION_NAMES = ("no-op", "left", "up", "right", "down", "fire")  # by the package's numbers


class MinAtar:
    """One game with minimal actions and, by default, the package's sticky actions and growing difficulty.

    The package has a time limit in Freeway alone (2,500 frames); a good agent's episodes of the other games may never
    end without `max_episode_frames`.
    """

    def __init__(self, game: str, *, sticky_action_prob: float = 0.1, difficulty_ramping: bool = True) -> None:
        """With a probability of `sticky_action_prob` a step repeats the last action instead of the one given."""
        self._game = _make_game(game, sticky_action_prob, difficulty_ramping)
        self._game.seed(0)  # makes the package and the game share one random state
        self._actions = self._game.minimal_action_set()
        height, width, channels = self._game.state_shape()
        self.frame_shape = (channels, height, width)
        self.action_space: ActionSpace = spaces.Discrete(len(self._actions))
        self.action_names = tuple(ACTION_NAMES[action] for action in self._actions)

    def reset(self, seed: int) -> None:
        # The package's own reset keeps the last action, which a sticky action would repeat. A new game, or a new random
        # state, would do as well but asks the operating system for a seed that is never used (100 µs each).
        self._game.last_action = 0
        self._game.random.seed(seed)
        self._game.reset()

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        reward, ended = self._game.act(self._actions[int(action)])
        return EnvStep(float(reward), bool(ended), bool(ended))

    def frame(self) -> Frames:
        return state_to_frame(self._game.state())

    def render(self) -> Frames:
        """The grid in colors; where objects overlap, the later channel is on top."""
        state = self._game.state()
        grid = np.empty((*state.shape[:2], 3), np.uint8)
        grid[:] = BACKGROUND
        for channel in range(state.shape[2]):
            grid[state[..., channel]] = PALETTE[channel]
        return enlarge(grid, RENDER_SCALE)

    def close(self) -> None:
        pass


def state_to_frame(state: npt.NDArray[np.bool_]) -> Frames:
    """(H, W, C): where objects are -> (C, H, W) of 0 and 255."""
    return channels_first(state.astype(np.uint8) * 255)


def _to_frame(observations: Sequence[Any], frame_shape: tuple[int, int, int]) -> Frames:
    """The frame of the package's `state()`, which its Gymnasium environments observe too."""
    state = np.asarray(observations[-1])
    channels, height, width = frame_shape
    if state.dtype == np.bool_ and state.shape == (height, width, channels):
        return state_to_frame(state)
    return newest_to_frame(observations, frame_shape)


def _make_game(game: str, sticky_action_prob: float, difficulty_ramping: bool) -> Any:
    with _interrupt_later():
        import minatar

    return minatar.Environment(game, sticky_action_prob=sticky_action_prob, difficulty_ramping=difficulty_ramping)


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: MinAtar imports seaborn inside a bare `except`, which would swallow it."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread alone
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


def _check_options(name: str, config: EnvironmentConfig) -> None:
    require_options(f"minatar/{name}", config, image_size=10, grayscale=False)
    for argument, value in as_keywords(config.env_args).items():
        if argument not in ALLOWED_ARGUMENTS:
            raise unknown("env_args", argument, ALLOWED_ARGUMENTS)
        is_flag = isinstance(value, bool)
        if argument == "difficulty_ramping" and is_flag:
            continue
        if argument == "sticky_action_prob" and not is_flag and isinstance(value, int | float) and 0 <= value <= 1:
            continue
        raise InputError(f"env_args: {argument}={shown(value)} is not allowed; allowed: {ALLOWED_ARGUMENTS[argument]}")


FAMILY = EnvFamily(
    tasks=GAMES,
    make=lambda name, config: MinAtar(name, **as_keywords(config.env_args)),
    actions="discrete",
    check_options=_check_options,
    to_frame=_to_frame,
    takes_env_args=True,
    own_settings=True,
)
