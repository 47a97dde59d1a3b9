"""Videos of an agent: the rendered frame above a strip with reward, return, and Q values or action."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from playvirtual.agents.agent import Agent, ValuesActions
from playvirtual.training.evaluation import WatchedStep

Frame = npt.NDArray[np.uint8]  # (H, W, 3)
STRIP = 44  # pixels below the frame
BAR = (86, 180, 233)
CHOSEN = (240, 228, 66)


class Recorder:
    """Records the frames of the first env of an evaluation; it changes nothing."""

    def __init__(self, agent: Agent | None = None, limit: int = 1_000) -> None:
        """Without an agent there is no strip; at most `limit` frames are recorded."""
        self.frames: list[Frame] = []
        self._agent, self._limit = agent, limit
        self._return = 0.0

    def __call__(self, step: WatchedStep) -> None:
        self._return += step.reward
        if len(self.frames) < self._limit:
            frame = step.env.render(0).copy()
            self.frames.append(frame if self._agent is None else self._captioned(frame, step))
        if step.done:
            self._return = 0.0

    def _captioned(self, frame: Frame, step: WatchedStep) -> Frame:
        height, width, _ = frame.shape
        canvas = Image.new("RGB", (width, height + STRIP))
        canvas.paste(Image.fromarray(frame))
        pen = ImageDraw.Draw(canvas)
        pen.text((4, height + 2), f"reward {step.reward:+.3g}   return {self._return:.4g}", fill="white")
        if isinstance(self._agent, ValuesActions):
            values = self._agent.action_values(step.observation).cpu().numpy()
            chosen = int(step.action)
            pen.text(
                (4, height + 14), f"Q {values[chosen]:.3g} of {values.min():.3g} to {values.max():.3g}", fill="white"
            )
            spread = max(float(np.ptp(values)), 1e-9)
            _bars(pen, (values - values.min()) / spread, height, width, marked=chosen)
        else:
            action = np.atleast_1d(np.asarray(step.action, dtype=np.float64))
            pen.text((4, height + 14), f"action {' '.join(f'{a:+.2f}' for a in action[:6])}", fill="white")
            _bars(pen, (action + 1) / 2, height, width, marked=-1)
        return np.asarray(canvas)

    def save(self, path: Path, frames_per_second: float = 15.0) -> Path:
        """Writes path.mp4 if imageio-ffmpeg is installed, else path.gif; returns the file's path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if find_spec("imageio_ffmpeg") is not None:
            return _mp4(self.frames, path.with_name(path.name + ".mp4"), frames_per_second)
        self.save_gif(gif := path.with_name(path.name + ".gif"), frames_per_second)
        return gif

    def save_gif(self, path: Path, frames_per_second: float = 10.0) -> None:
        """Writes the frames as an endless GIF."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.gif(frames_per_second))

    def gif(self, frames_per_second: float = 10.0, most: int | None = None) -> bytes:
        """The frames, at most the first `most`, as an endless GIF."""
        first, *rest = [Image.fromarray(frame) for frame in self.frames[:most]]
        file, duration = io.BytesIO(), round(1000 / frames_per_second)
        first.save(file, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
        return file.getvalue()


def _bars(pen: ImageDraw.ImageDraw, heights: npt.NDArray[np.generic], top: int, width: int, marked: int) -> None:
    """One bar per action, 0 … 1, the chosen one in another colour."""
    step = max(2, (width - 8) // max(len(heights), 1))
    for i, share in enumerate(np.clip(np.asarray(heights, dtype=np.float64), 0, 1)):
        x, y = 4 + i * step, top + STRIP - 3
        pen.rectangle((x, y - 1 - int(12 * share), x + step - 2, y), fill=CHOSEN if i == marked else BAR)


def _mp4(frames: Sequence[Frame], path: Path, frames_per_second: float) -> Path:
    """Writes H.264, which needs even sides: an odd one loses its last row or column."""
    import imageio_ffmpeg

    height, width = (side - side % 2 for side in frames[0].shape[:2])
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=frames_per_second, macro_block_size=2)
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame[:height, :width]))
    writer.close()
    return path
