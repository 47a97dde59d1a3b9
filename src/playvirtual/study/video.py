"""Animations of an agent at play."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from playvirtual.envs import Environment


class Recorder:
    """Watches the first lane of an evaluation and keeps what a person would see."""

    def __init__(self, limit: int = 2_000) -> None:
        self.pictures: list[npt.NDArray[np.uint8]] = []
        self._limit = limit

    def __call__(self, env: Environment, action: npt.NDArray[np.generic], reward: float) -> None:
        if len(self.pictures) < self._limit:
            self.pictures.append(env.picture(0).copy())

    def save_gif(self, path: Path, frames_per_second: float = 10.0) -> None:
        """Writes the pictures as an endless GIF."""
        images = [Image.fromarray(picture) for picture in self.pictures]
        path.parent.mkdir(parents=True, exist_ok=True)
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / frames_per_second), loop=0)
