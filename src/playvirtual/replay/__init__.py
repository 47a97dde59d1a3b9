"""Experience: every frame stored once on the training device, read back as sequences."""

from playvirtual.replay.augmentation import Augmentation, Crop, ImageDraws, intensity, window
from playvirtual.replay.buffer import Replay
from playvirtual.replay.returns import NStep, n_step
from playvirtual.replay.sampling import Priorities, search

__all__ = [
    "Augmentation",
    "Crop",
    "ImageDraws",
    "NStep",
    "Priorities",
    "Replay",
    "intensity",
    "n_step",
    "search",
    "window",
]
