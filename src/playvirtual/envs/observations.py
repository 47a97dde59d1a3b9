"""What Gymnasium observations show: an image, alone or beside vectors, whose numbers become planes of pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual import files
from playvirtual.envs.env import Frames
from playvirtual.envs.image import CHANNELS, as_array, channels_last, image_to_frame
from playvirtual.errors import InputError, shown
from playvirtual.options import LARGEST_INT

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
    """Whether that is the shape of an image in gray or three colors."""
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in CHANNELS or shape[0] in CHANNELS))


class ObservedParts:
    """The image of an observation, and the numbers of the vectors beside it.

    Every number has a plane of pixels of its own, all of one shade: its place between its bounds in 256 steps. A number
    without finite bounds is first squashed to x / (1 + |x|).
    """

    def __init__(self, task: str | None, space: spaces.Space[Any]) -> None:
        """`space` is one that `shows_images` accepts; without `task` the observations come from another program."""
        self._task, self._key = task, None
        self._vectors: dict[str, spaces.Box] = {}
        image = space
        if isinstance(space, spaces.Dict):
            self._key = _image_key(str(task), space)
            image = space[str(self._key)]
            self._vectors = {name: _vector(str(task), name, part) for name, part in space.items() if name != self._key}
        assert isinstance(image, spaces.Box)
        self.image_space = image
        self._highest = int(image.high.max(initial=0))
        low, high = (
            np.concatenate([getattr(part, side).reshape(-1) for part in self._vectors.values()]).astype(np.float64)
            if self._vectors
            else np.zeros(0)
            for side in ("low", "high")
        )
        self.count = len(low)  # numbers
        self.bounded = np.isfinite(low) & np.isfinite(high) & (high > low)  # (count,), as are the bounds
        self.low = np.where(self.bounded, low, -1.0)
        self.high = np.where(self.bounded, high, 1.0)
        if self.count > MOST_NUMBERS:
            raise InputError(
                f"task: the observations of {task!r} have {self.count} numbers beside the image; allowed: "
                f"{MOST_NUMBERS} or fewer, as each takes a plane of every frame"
            )

    def describe(self) -> dict[str, Any] | None:
        """The parts of a Dict as JSON can hold them, which `parts_from_description` takes; None for an image alone."""
        if self._key is None:
            return None
        vectors = [
            {"name": name, "shape": list(space.shape), "low": _finite(space.low), "high": _finite(space.high)}
            for name, space in self._vectors.items()
        ]
        return {"image": self._key, "shape": list(self.image_space.shape), "high": self._highest, "vectors": vectors}

    def image(self, observation: Any) -> Frames:
        """(H, W, C), C = 1 or 3: the image of an observation, of the type and shape that its space declares."""
        name = f"task: the image of {self._task!r}" if self._task is not None else self._named(str(self._key))
        image = observation
        if self._key is not None:
            image = self._part(observation, self._key)
        image = as_array(image)
        if image is None or image.dtype != np.uint8 or not is_image_shape(image.shape):
            raise InputError(f"{name} is {_kind(image)}; {ALLOWED if self._task else self._wanted_image()}")
        if image.shape != self.image_space.shape:
            raise InputError(f"{name} has shape {image.shape}; allowed: {self.image_space.shape}")
        if self._highest < 255 and image.max(initial=0) > self._highest:
            raise InputError(
                f"{name} has the value {image.max()}; allowed: 0 to {self._highest}, as its observation space says"
            )
        return channels_last(image)

    def frame(self, observation: Any, frame_shape: tuple[int, int, int]) -> Frames:
        """(C, H, W): the image in the colors and the size of a frame, then the planes of the numbers."""
        channels, height, width = frame_shape
        frame = image_to_frame(self.image(observation), (channels - self.count, height, width))
        return np.concatenate([frame, self.planes(observation, height)]) if self.count else frame

    def to_frame(self, observations: Sequence[Any], frame_shape: tuple[int, int, int]) -> Frames:
        """The frame of the newest raw observation, a dict; what is a frame already is taken as it is."""
        newest = observations[-1]
        if isinstance(newest, Mapping):
            frame = self.frame(newest, frame_shape)
            if frame.shape != frame_shape:
                raise InputError(f"agent: its frames of shape {frame_shape} are not made of {', '.join(self._names())}")
            return frame
        whole = as_array(newest)
        if whole is not None and whole.dtype == np.uint8 and whole.shape == frame_shape:
            return whole
        raise InputError(
            f"observation: {_kind(whole)} is not allowed; allowed: a dict of {', '.join(self._names())}, or a frame of "
            f"all of them, uint8 of shape {frame_shape}"
        )

    def planes(self, observation: Any, size: int) -> Frames:
        """(numbers, size, size): the numbers of an observation."""
        parts = []
        for name, space in self._vectors.items():
            vector = as_array(self._part(observation, name))
            fits = vector is not None and vector.dtype.kind in "biuf" and vector.shape == space.shape
            if vector is None or not fits or not np.isfinite(vector).all():
                found = shown(vector.tolist()) if vector is not None and fits else _kind(vector)
                raise InputError(f"{self._named(name)} is {found}; allowed: finite numbers of shape {space.shape}")
            parts.append(vector.reshape(-1).astype(np.float64))
        numbers = np.concatenate(parts)
        squashed = np.where(self.bounded, numbers, numbers / (1 + np.abs(numbers)))
        place = (np.clip(squashed, self.low, self.high) - self.low) / (self.high - self.low)
        shades = np.rint(255 * place).astype(np.uint8)
        return np.broadcast_to(shades[:, None, None], (self.count, size, size))

    def _part(self, observation: Any, name: str) -> Any:
        if isinstance(observation, Mapping) and name in observation:
            return observation[name]
        has = (
            f"a dict of {', '.join(map(str, observation))}" if isinstance(observation, Mapping) else shown(observation)
        )
        raise InputError(f"{self._named(name)} is missing in {has}; allowed: a dict of {', '.join(self._names())}")

    def _named(self, key: str) -> str:
        return f"observation: {key!r}" if self._task is None else f"task: {key!r} of an observation of {self._task!r}"

    def _names(self) -> list[str]:
        return [str(self._key), *self._vectors]

    def _wanted_image(self) -> str:
        return f"allowed: uint8 of shape {self.image_space.shape}"


def parts_from_description(record: Mapping[str, Any]) -> ObservedParts:
    """The parts that `ObservedParts.describe` described; raises a ValueError for what it cannot have written."""
    shape = _sizes(files.entry(record, "shape"))
    if not is_image_shape(shape):
        raise ValueError(f"shape: {shown(shape)} is not allowed; {ALLOWED}")
    image = spaces.Box(0, files.as_whole(files.entry(record, "high"), "high", 0, 255), shape, np.uint8)
    parts: dict[str, spaces.Space[Any]] = {_name(files.entry(record, "image")): image}
    vectors = files.entry(record, "vectors")
    if not isinstance(vectors, list):
        raise ValueError(f"vectors: {shown(vectors)} is not allowed; allowed: a list of records")
    count = 0
    for vector in map(files.as_record, vectors):
        name, sizes = _name(files.entry(vector, "name")), _sizes(files.entry(vector, "shape"))
        count += math.prod(sizes)
        if len(sizes) > 1 or count > MOST_NUMBERS or name in parts:
            raise ValueError(f"vectors: {name!r} is not allowed; allowed: {MOST_NUMBERS} numbers, each name once")
        low, high = (_bounds(files.entry(vector, side), side, math.prod(sizes)) for side in ("low", "high"))
        parts[name] = spaces.Box(low.reshape(sizes), high.reshape(sizes), dtype=np.float64)
    return ObservedParts(None, spaces.Dict(list(parts.items())))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"name: {shown(value)} is not allowed; allowed: text")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    """The shape of an image or a vector."""
    sizes = files.as_numbers(value, "shape")
    if not all(size == int(size) >= 1 for size in sizes) or math.prod(sizes) > LARGEST_INT:
        raise ValueError(f"shape: {shown(value)} is not allowed; allowed: whole sizes")
    return tuple(map(int, sizes))


def _finite(bounds: npt.NDArray[Any]) -> list[float | None]:
    """The bounds in one list, with None in place of what JSON does not have."""
    return [bound if math.isfinite(bound) else None for bound in bounds.astype(np.float64).ravel().tolist()]


def _bounds(value: Any, side: str, count: int) -> npt.NDArray[np.float64]:
    """The bounds that `_finite` wrote."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{side}: {shown(value)} is not allowed; allowed: a list of {count} numbers or null")
    none = -math.inf if side == "low" else math.inf
    return np.array([none if bound is None else files.as_number(bound, side) for bound in value], np.float64)


def _kind(array: npt.NDArray[Any] | None) -> str:
    """What an error says of a value that should be another array."""
    return "no array" if array is None else f"{array.dtype} of shape {array.shape}"


def _vector(task: str, name: str, space: spaces.Space[Any]) -> spaces.Box:
    if isinstance(space, spaces.Box) and len(space.shape) <= 1:
        return space
    raise InputError(
        f"task: the observations of {task!r} have {name!r}, {space}; allowed: a Dict of one image and vectors (Box of "
        "one dimension): gymnasium.wrappers.FilterObservation(env, [names]) keeps some of them"
    )
