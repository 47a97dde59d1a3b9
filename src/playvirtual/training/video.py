"""Films of an agent at play: the game's own picture above a strip with reward, return, and Q values or action."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from playvirtual.agents.rainbow import Rainbow
from playvirtual.training.evaluate import Moment
from playvirtual.training.factory import Agent

Picture = npt.NDArray[np.uint8]  # (H, W, 3)
STRIP = 44  # pixels below the picture
BAR = (86, 180, 233)
CHOSEN = (240, 228, 66)


class Recorder:
    """Watches the first lane of an evaluation and keeps what a person would see; changes nothing."""

    def __init__(self, agent: Agent | None = None, limit: int = 1_000) -> None:
        """Without an agent there is no strip; after `limit` pictures no more are taken."""
        self.pictures: list[Picture] = []
        self._agent, self._limit = agent, limit
        self._return = 0.0

    def __call__(self, moment: Moment) -> None:
        self._return += moment.reward
        if len(self.pictures) < self._limit:
            picture = moment.env.picture(0).copy()
            self.pictures.append(picture if self._agent is None else self._captioned(picture, moment))
        if moment.over:
            self._return = 0.0

    def _captioned(self, picture: Picture, moment: Moment) -> Picture:
        height, width, _ = picture.shape
        canvas = Image.new("RGB", (width, height + STRIP))
        canvas.paste(Image.fromarray(picture))
        pen = ImageDraw.Draw(canvas)
        pen.text((4, height + 2), f"reward {moment.reward:+.3g}   return {self._return:.4g}", fill="white")
        if isinstance(self._agent, Rainbow):
            values = self._agent.values(moment.observation).cpu().numpy()
            chosen = int(moment.action)
            pen.text(
                (4, height + 14), f"Q {values[chosen]:.3g} of {values.min():.3g} to {values.max():.3g}", fill="white"
            )
            spread = max(float(np.ptp(values)), 1e-9)
            _bars(pen, (values - values.min()) / spread, height, width, marked=chosen)
        else:
            action = np.atleast_1d(np.asarray(moment.action, dtype=np.float64))
            pen.text((4, height + 14), f"action {' '.join(f'{a:+.2f}' for a in action[:6])}", fill="white")
            _bars(pen, (action + 1) / 2, height, width, marked=-1)
        return np.asarray(canvas)

    def save(self, path: Path, frames_per_second: float = 15.0) -> Path:
        """Writes path.mp4 if imageio-ffmpeg is there, else path.gif; returns which."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if find_spec("imageio_ffmpeg") is not None:
            return _mp4(self.pictures, path.with_name(path.name + ".mp4"), frames_per_second)
        self.save_gif(gif := path.with_name(path.name + ".gif"), frames_per_second)
        return gif

    def save_gif(self, path: Path, frames_per_second: float = 10.0) -> None:
        """Writes the pictures as an endless GIF."""
        images = [Image.fromarray(picture) for picture in self.pictures]
        path.parent.mkdir(parents=True, exist_ok=True)
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / frames_per_second), loop=0)


def _bars(pen: ImageDraw.ImageDraw, heights: npt.NDArray[np.generic], top: int, width: int, marked: int) -> None:
    """One bar per action, 0 … 1, the chosen one in another colour."""
    step = max(2, (width - 8) // max(len(heights), 1))
    for i, share in enumerate(np.clip(np.asarray(heights, dtype=np.float64), 0, 1)):
        x, y = 4 + i * step, top + STRIP - 3
        pen.rectangle((x, y - 1 - int(12 * share), x + step - 2, y), fill=CHOSEN if i == marked else BAR)


def _mp4(pictures: Sequence[Picture], path: Path, frames_per_second: float) -> Path:
    """H.264, which wants even sides: an odd one loses its last row or column."""
    import imageio_ffmpeg

    height, width = (side - side % 2 for side in pictures[0].shape[:2])
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=frames_per_second, macro_block_size=2)
    writer.send(None)
    for picture in pictures:
        writer.send(np.ascontiguousarray(picture[:height, :width]))
    writer.close()
    return path
