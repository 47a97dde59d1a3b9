"""Image operations in plain NumPy: gray, resizing by area, enlargement by whole pixels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from playvirtual.envs.env import Frames

# ITU-R BT.601 luma, what "gray" means in ALE, OpenCV and Pillow.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def to_gray(image: Frames) -> Frames:
    """(H, W, 3) colours to (H, W, 1) luma."""
    gray: Frames = np.rint(image.astype(np.float32) @ LUMA)[..., None].astype(np.uint8)
    return gray


def resize_area(image: Frames, size: int) -> Frames:
    """(H, W, C) to (size, size, C): each new pixel is the mean of the area it covers in the old image."""
    height, width, _ = image.shape
    if (height, width) == (size, size):
        return image
    planes = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32)
    pixels = _coverage(height, size) @ planes @ _coverage(width, size).T  # (C, size, size)
    resized: Frames = np.rint(pixels).astype(np.uint8).transpose(1, 2, 0)
    return resized


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
