"""What Gymnasium observations show: an image, alone or beside vectors, whose numbers become planes of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.env import Frames
from playvirtual.envs.image import CHANNELS
from playvirtual.errors import InputError, shown

ALLOWED = "allowed: uint8, (H, W), (H, W, 1), (H, W, 3), (1, H, W) or (3, H, W)"
MOST_NUMBERS = 64  # beside an image: each takes a plane of every frame in the replay buffer


def shows_images(task: str, space: spaces.Space[Any]) -> bool:
    """Whether observations are images or a Dict with one; an InputError for what might be one and cannot be used."""
    if isinstance(space, spaces.Dict):
        return _image_key(task, space) is not None
    return _is_image(task, space)


def _image_key(task: str, space: spaces.Dict) -> str | None:
    images = [name for name, part in space.items() if _is_image(task, part)]
    if len(images) > 1:
        raise InputError(
            f"task: the observations of {task!r} have the images {', '.join(images)}; allowed: one of them: "
            f"gymnasium.wrappers.FilterObservation(env, [{images[0]!r}]) keeps it"
        )
    return images[0] if images else None


def _is_image(task: str, space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    if len(space.shape) == 3 and not is_image_shape(space.shape) and 4 in (space.shape[0], space.shape[2]):
        raise InputError(f"task: the observations of {task!r} are uint8 of shape {space.shape}; {ALLOWED}")
    return is_image_shape(space.shape)


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether that is the shape of an image in gray or three colours."""
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in CHANNELS or shape[0] in CHANNELS))


class ObservedParts:
    """The image of an observation, and the numbers of the vectors beside it.

    Every number has a plane of pixels of its own, all of one shade: its place between its bounds in 256 steps. A number
    without finite bounds is first squashed to x / (1 + |x|).
    """

    def __init__(self, task: str, space: spaces.Space[Any]) -> None:
        """`space` is one that `shows_images` accepts."""
        self._task, self._key = task, None
        self._vectors: dict[str, spaces.Box] = {}
        image = space
        if isinstance(space, spaces.Dict):
            self._key = _image_key(task, space)
            image = space[str(self._key)]
            self._vectors = {name: _vector(task, name, part) for name, part in space.items() if name != self._key}
        assert isinstance(image, spaces.Box)
        self.image_space = image
        low, high = (
            np.concatenate([getattr(part, side).reshape(-1) for part in self._vectors.values()]).astype(np.float64)
            if self._vectors
            else np.zeros(0)
            for side in ("low", "high")
        )
        self.count = len(low)  # numbers
        self._bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
        self._low = np.where(self._bounded, low, -1.0)
        self._high = np.where(self._bounded, high, 1.0)
        if self.count > MOST_NUMBERS:
            raise InputError(
                f"task: the observations of {task!r} have {self.count} numbers beside the image; allowed: "
                f"{MOST_NUMBERS} or fewer, as each takes a plane of every frame"
            )

    def image(self, observation: Any) -> npt.NDArray[Any]:
        """The image of an observation, of whatever type and shape the environment has given."""
        if self._key is not None and (not isinstance(observation, Mapping) or self._key not in observation):
            raise InputError(
                f"task: an observation of {self._task!r} is {shown(observation)}; allowed: a dict with its image"
            )
        return np.asarray(observation[self._key] if self._key is not None else observation)

    def planes(self, observation: Any, size: int) -> Frames:
        """(numbers, size, size): the numbers of an observation."""
        parts = []
        for name, space in self._vectors.items():
            vector = np.asarray(observation.get(name), np.float64)
            if vector.shape != space.shape or not np.isfinite(vector).all():
                raise InputError(
                    f"task: {name!r} of an observation of {self._task!r} is {shown(vector.tolist())}; allowed: finite "
                    f"numbers of shape {space.shape}"
                )
            parts.append(vector.reshape(-1))
        numbers = np.concatenate(parts)
        squashed = np.where(self._bounded, numbers, numbers / (1 + np.abs(numbers)))
        place = (np.clip(squashed, self._low, self._high) - self._low) / (self._high - self._low)
        shades = np.rint(255 * place).astype(np.uint8)
        return np.broadcast_to(shades[:, None, None], (self.count, size, size))


def _vector(task: str, name: str, space: spaces.Space[Any]) -> spaces.Box:
    if isinstance(space, spaces.Box) and len(space.shape) <= 1:
        return space
    raise InputError(
        f"task: the observations of {task!r} have {name!r}, {space}; allowed: a Dict of one image and vectors (Box of "
        "one dimension): gymnasium.wrappers.FilterObservation(env, [names]) keeps some of them"
    )
