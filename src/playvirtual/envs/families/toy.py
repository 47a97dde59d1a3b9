"""Two small tasks for tests and first steps: toy/catch (discrete actions) and toy/reach (continuous actions)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames
from playvirtual.envs.image import channels_first, enlarge, to_gray
from playvirtual.envs.registry import EnvFamily, require_options
from playvirtual.envs.vector import EnvStep, SingleEnv

# toy/catch
ROWS = COLUMNS = 10
CATCH_RENDER_SCALE = 20

# toy/reach
TIME_LIMIT = 50  # environment frames
SPEED = 0.1  # per frame, on a plane of [−1, 1]²
SHARPNESS = 2.0  # the reward falls to 1/e within half of the plane's half-width
AGENT_RADIUS = 0.2
TARGET_RADIUS = 0.3
TARGET_OFFSET = 0.5  # the target lies at one of (±0.5, ±0.5): few places, so few episodes teach them all
BACKGROUND = (20, 20, 40)
TARGET_COLOR = (230, 60, 60)
AGENT_COLOR = (120, 255, 160)
REACH_RENDER_SIZE = 240


class Catch:
    """A ball drops onto a row with a paddle, in 9 frames: +1 if the paddle is under it at the end, else −1.

    Actions 0, 1, 2 move the paddle left, not at all, right. The seed decides the ball's column.
    """

    frame_shape = (1, ROWS, COLUMNS)
    time_limit = ROWS - 1
    action_names = ("left", "stay", "right")

    def __init__(self) -> None:
        self.action_space: ActionSpace = spaces.Discrete(3)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self._ball_row = 0
        self._ball_column = int(np.random.default_rng(seed).integers(COLUMNS))
        self._paddle = COLUMNS // 2

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), COLUMNS - 1)
        self._ball_row += 1
        landed = self._ball_row == ROWS - 1
        caught = self._ball_column == self._paddle
        return EnvStep((1.0 if caught else -1.0) if landed else 0.0, landed, landed)

    def frame(self) -> Frames:
        frame = np.zeros(self.frame_shape, np.uint8)
        frame[0, ROWS - 1, self._paddle] = 255
        frame[0, self._ball_row, self._ball_column] = 255
        return frame

    def render(self) -> Frames:
        return enlarge(self.frame().transpose(1, 2, 0), CATCH_RENDER_SCALE)

    def close(self) -> None:
        pass


class Reach:
    """An agent moves to a target for 50 frames; each pays exp(−2 · distance to the target), at most 1.

    The action is a velocity in [−1, 1]², x to the right, y up. The seed places agent and target. The time limit
    truncates the episode; nothing terminates it.
    """

    time_limit = TIME_LIMIT

    def __init__(self, image_size: int, *, grayscale: bool) -> None:
        self.frame_shape = (1 if grayscale else 3, image_size, image_size)
        self.action_space: ActionSpace = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._grayscale = grayscale
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._agent = random.uniform(-0.9, 0.9, 2)
        self._target = TARGET_OFFSET * random.choice([-1.0, 1.0], 2)
        self._time = 0

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        velocity = np.clip(action.astype(np.float64), -1, 1)
        self._agent = np.clip(self._agent + SPEED * velocity, -1, 1)
        self._time += 1
        distance = float(np.linalg.norm(self._agent - self._target))
        return EnvStep(float(np.exp(-SHARPNESS * distance)), False, self._time == TIME_LIMIT)

    def frame(self) -> Frames:
        image = self._draw(self.frame_shape[1])
        return channels_first(to_gray(image) if self._grayscale else image)

    def render(self) -> Frames:
        return self._draw(REACH_RENDER_SIZE)

    def close(self) -> None:
        pass

    def _draw(self, size: int) -> Frames:
        """(size, size, 3): the target, and the agent above it, as discs with smooth rims."""
        image = np.full((size, size, 3), BACKGROUND, np.float64)
        centers = (np.arange(size) + 0.5) * (2 / size) - 1
        x, y = centers[None, :], -centers[:, None]
        for place, radius, color in (
            (self._target, TARGET_RADIUS, TARGET_COLOR),
            (self._agent, AGENT_RADIUS, AGENT_COLOR),
        ):
            inside = (radius - np.hypot(x - place[0], y - place[1])) * (size / 2)  # in pixels, from the rim
            cover = np.clip(inside + 0.5, 0, 1)[..., None]
            image += cover * (np.array(color) - image)
        return np.rint(image).astype(np.uint8)


def _make(name: str, config: EnvironmentConfig) -> SingleEnv:
    return Catch() if name == "catch" else Reach(config.image_size, grayscale=config.grayscale)


def _check_options(name: str, config: EnvironmentConfig) -> None:
    if name == "catch":
        require_options("toy/catch", config, image_size=ROWS, grayscale=False)


FAMILY = EnvFamily(
    tasks=("catch", "reach"),
    make=_make,
    actions={"catch": "discrete", "reach": "continuous"},
    check_options=_check_options,
    own_settings=True,
)
