"""Image operations in plain NumPy: gray, resizing by area, enlargement by whole pixels; raw images as frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from playvirtual.envs.env import Frames
from playvirtual.errors import InputError, shown

CHANNELS = (1, 3)  # gray, or red, green and blue

# ITU-R BT.601 luma, what "gray" means in ALE, OpenCV and Pillow.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def to_gray(image: Frames) -> Frames:
    """(H, W, 3) colors to (H, W, 1) luma."""
    gray: Frames = np.rint(image.astype(np.float32) @ LUMA)[..., None].astype(np.uint8)
    return gray


def resize_area(image: Frames, size: int) -> Frames:
    """(H, W, C) to (size, size, C): each new pixel is the mean of the area it covers in the old image.

    The sums have OpenCV's order, which ALE uses: rows first, one pixel after the other, in float32. So Atari's frames
    are the emulator's bit by bit, and no threads of a matrix product wait for each other on a busy machine.
    """
    height, width, _ = image.shape
    if (height, width) == (size, size):
        return image
    rows = np.zeros((height, size, image.shape[2]), np.float32)
    for columns, share in zip(*_taps(width, size), strict=True):
        rows += image[:, columns].astype(np.float32) * share[:, None]
    pixels = np.zeros((size, size, image.shape[2]), np.float32)
    for lines, share in zip(*_taps(height, size), strict=True):
        pixels += rows[lines] * share[:, None, None]
    resized: Frames = np.rint(pixels).astype(np.uint8)
    return resized


@lru_cache(maxsize=16)
def _taps(old: int, new: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """The old pixels that each new one covers, in order, and their shares, (taps, new) each; 0 for no pixel."""
    share = _coverage(old, new)
    taps = int((share > 0).sum(1).max())
    pixels = np.minimum((share > 0).argmax(1) + np.arange(taps)[:, None], old - 1)
    weights = share[np.arange(new), pixels]
    weights[1:][pixels[1:] == pixels[:-1]] = 0  # beyond the last old pixel
    return pixels, weights


@lru_cache(maxsize=16)
def _coverage(old: int, new: int) -> npt.NDArray[np.float32]:
    """(new, old): the share of each old pixel in each new one; every row sums to 1."""
    edges = np.linspace(0, old, new + 1)
    pixels = np.arange(old)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    share: npt.NDArray[np.float32] = (np.clip(overlap, 0, None) * (new / old)).astype(np.float32)
    return share


def enlarge(image: Frames, factor: int) -> Frames:
    """(H, W, C) with every pixel drawn `factor` times in both directions; one channel becomes three."""
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.broadcast_to(large, (*large.shape[:2], 3)).copy()


def channels_first(image: Frames) -> Frames:
    """(H, W, C) to a contiguous (C, H, W)."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))


# The raw observations since the agent's last action, oldest first, and the shape of a frame -> the frame (C, H, W).
ToFrame = Callable[[Sequence[Any], tuple[int, int, int]], Frames]


def newest_to_frame(observations: Sequence[Any], frame_shape: tuple[int, int, int]) -> Frames:
    """The frame of the newest raw observation: reduced to gray where the agent sees gray, and by area to its size."""
    image = as_image(observations[-1], frame_shape)
    return image if image.shape == frame_shape else image_to_frame(image, frame_shape)


def image_to_frame(image: Frames, frame_shape: tuple[int, int, int]) -> Frames:
    """(H, W, C), C = 1 or 3, as the frame (C, H, W) that an agent sees."""
    if frame_shape[0] == 1 and image.shape[2] == 3:
        image = to_gray(image)
    return channels_first(resize_area(image, frame_shape[1]))


def channels_last(image: Frames) -> Frames:
    """(H, W), (H, W, C) or (C, H, W) as (H, W, C)."""
    if image.ndim == 2:
        return image[..., None]
    return image if image.shape[2] in CHANNELS else image.transpose(1, 2, 0)


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """A value as an array; None for what is none: lists of different lengths, a tensor on a GPU."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype != object else None


def as_image(observation: Any, frame_shape: tuple[int, int, int]) -> Frames:
    """A raw observation as (H, W, C), or, where it has the frame's own shape and needs nothing more, as it is."""
    if isinstance(observation, Mapping) and len(observation) == 1:
        (observation,) = observation.values()
    if isinstance(observation, Mapping):
        raise InputError(
            f"observation: a dict of {', '.join(map(str, observation))} is not allowed, as this agent has learned from "
            "images alone; allowed: its image"
        )
    image = as_array(observation)
    if image is not None and image.dtype == np.uint8 and image.shape == frame_shape:
        return image
    if image is not None and image.dtype == np.uint8 and image.ndim in (2, 3) and image.size > 0:
        found = channels_last(image)
        if (found.shape[2], frame_shape[0]) in ((1, 1), (3, 3), (3, 1)):
            return found
    kind = f"{image.dtype} of shape {image.shape}" if image is not None else shown(observation)
    images = {1: "(H, W), (H, W, 1), (H, W, 3), or ", 3: "(H, W, 3), (3, H, W), or "}.get(frame_shape[0], "")
    raise InputError(f"observation: {kind} is not allowed; allowed: uint8 of shape {images}{frame_shape}")
