"""Videos of an agent: the rendered frame above a panel with return, reward, and Q values or the policy's action."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gymnasium import spaces
from PIL import Image

from playvirtual.agents.agent import Agent, ValuesActions
from playvirtual.config.schema import Config
from playvirtual.envs import make
from playvirtual.envs.env import action_names
from playvirtual.errors import InputError
from playvirtual.runs.trained_agent import TrainedAgent
from playvirtual.training.display.drawing import Frame, Row, choice_rows, grid, value_rows, vector_rows, with_panel
from playvirtual.training.evaluation import Policy, WatchedStep, evaluation_seeds, play_episodes


class Recorder:
    """Records the frames of the first env of an evaluation; it changes nothing."""

    def __init__(self, agent: Agent | TrainedAgent | None = None, limit: int = 1_000, title: str = "") -> None:
        """Without an agent there is no panel below the frames; at most `limit` frames are recorded."""
        self.frames: list[Frame] = []
        self._agent = agent.unwrapped if isinstance(agent, TrainedAgent) else agent
        self._limit, self._title = limit, title
        self._return, self._step = 0.0, 0

    def __call__(self, step: WatchedStep) -> None:
        self._return, self._step = self._return + step.reward, self._step + 1
        if len(self.frames) < self._limit:
            frame = step.env.render(0).copy()
            self.frames.append(frame if self._agent is None else self._captioned(frame, step))
        if step.done:
            self._return, self._step = 0.0, 0

    def _captioned(self, frame: Frame, step: WatchedStep) -> Frame:
        head = [
            f"return {self._return:.4g}   reward {step.reward:+.3g}",
            "   ".join([*([self._title] if self._title else []), f"step {self._step}", self._what()]),
        ]
        return with_panel(frame, head, self._rows(step))

    def _what(self) -> str:
        """What the rows of the panel show."""
        return "Q of each action" if isinstance(self._agent, ValuesActions) else "action of the policy"

    def _rows(self, step: WatchedStep) -> list[Row]:
        space = step.env.action_space
        if not isinstance(space, spaces.Discrete):
            return vector_rows(step.action)
        names = action_names(step.env) or [f"action {number}" for number in range(int(space.n))]
        if isinstance(self._agent, ValuesActions):
            values = self._agent.action_values(step.observation).cpu().numpy()
            if values.shape != (space.n,):
                raise InputError(
                    f"action_values: of shape {values.shape} for one observation (C, H, W); allowed: ({space.n},), as "
                    "(…, |A|) for (…, C, H, W)"
                )
            return value_rows(names, values, int(step.action))
        return choice_rows(names, int(step.action))

    def save(self, path: Path, frames_per_second: float = 15.0) -> Path:
        """Writes the kind of film that the path's ending names and returns the file's path.

        A path without such an ending gets one: .mp4 if imageio-ffmpeg is installed, else .gif.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix not in (".mp4", ".gif"):
            path = path.with_name(path.name + (".mp4" if can_write_mp4() else ".gif"))
        if path.suffix == ".mp4":
            return _mp4(self.frames, path, frames_per_second)
        self.save_gif(path, frames_per_second)
        return path

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


def can_write_mp4() -> bool:
    """Whether imageio-ffmpeg, of the extra `video`, is installed."""
    return find_spec("imageio_ffmpeg") is not None


def film(
    agent: Agent, policy: Policy, config: Config, *, episodes: int, seed: int, step: int, limit: int = 1_000
) -> tuple[Recorder, list[float]]:
    """Episodes of an evaluation side by side, one after another played in one env, and their returns."""
    env = make(config.task, 1, training=False, config=config.environment)
    recorders = [Recorder(agent, limit, f"episode {number}") for number in range(1, episodes + 1)]
    returns: list[float] = []
    try:
        for recorder, own in zip(recorders, evaluation_seeds(seed, step, episodes), strict=True):
            returns += play_episodes(policy, env, config.environment, [own], recorder)
    finally:
        env.close()
    whole = Recorder()
    whole.frames = grid([recorder.frames for recorder in recorders])
    return whole, returns


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
