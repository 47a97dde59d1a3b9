"""A point on a plane is steered to a target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.image import channels_first, to_gray
from playvirtual.envs.lanes import Outcome
from playvirtual.envs.protocol import ActionSpace, Frames

TIME_LIMIT = 50  # environment frames
SPEED = 0.1  # per frame, on a plane of [−1, 1]²
SHARPNESS = 2.0  # the reward falls to 1/e within half of the plane's half-width
AGENT_RADIUS = 0.2
TARGET_RADIUS = 0.3
TARGET_OFFSET = 0.5  # the target lies at one of (±0.5, ±0.5): few places, so few episodes teach them all
BACKGROUND = (20, 20, 40)
TARGET_COLOUR = (230, 60, 60)
AGENT_COLOUR = (120, 255, 160)
PICTURE_SIZE = 240


class Reach:
    """50 frames, ended by the time limit alone; each pays exp(−2 · distance to the target), at most 1.

    The action is a velocity in [−1, 1]², x to the right, y up. The seed places agent and target.
    """

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

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        velocity = np.clip(action.astype(np.float64), -1, 1)
        self._agent = np.clip(self._agent + SPEED * velocity, -1, 1)
        self._time += 1
        distance = float(np.linalg.norm(self._agent - self._target))
        return Outcome(float(np.exp(-SHARPNESS * distance)), False, self._time == TIME_LIMIT)

    def frame(self) -> Frames:
        image = self._draw(self.frame_shape[1])
        return channels_first(to_gray(image) if self._grayscale else image)

    def picture(self) -> Frames:
        return self._draw(PICTURE_SIZE)

    def close(self) -> None:
        pass

    def _draw(self, size: int) -> Frames:
        """(size, size, 3): the target, and the agent above it, as discs with smooth rims."""
        image = np.full((size, size, 3), BACKGROUND, np.float64)
        centres = (np.arange(size) + 0.5) * (2 / size) - 1
        x, y = centres[None, :], -centres[:, None]
        for place, radius, colour in (
            (self._target, TARGET_RADIUS, TARGET_COLOUR),
            (self._agent, AGENT_RADIUS, AGENT_COLOUR),
        ):
            inside = (radius - np.hypot(x - place[0], y - place[1])) * (size / 2)  # in pixels, from the rim
            cover = np.clip(inside + 0.5, 0, 1)[..., None]
            image += cover * (np.array(colour) - image)
        return np.rint(image).astype(np.uint8)
