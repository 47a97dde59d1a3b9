"""The replay buffer on the training device, the batches read from it, their samplers, and image augmentation."""

from playvirtual.replay.augmentation import ImageRandoms, RandomCrop, RandomShift
from playvirtual.replay.batches import RainbowBatch, SacBatch, SequenceBatch, TransitionBatch
from playvirtual.replay.buffer import ReplayBuffer
from playvirtual.replay.samplers import BatchSampler, PrioritizedSampler, UniformSampler
from playvirtual.replay.snapshot import restore_snapshot, snapshot_files

__all__ = [
    "BatchSampler",
    "ImageRandoms",
    "PrioritizedSampler",
    "RainbowBatch",
    "RandomCrop",
    "RandomShift",
    "ReplayBuffer",
    "SacBatch",
    "SequenceBatch",
    "TransitionBatch",
    "UniformSampler",
    "restore_snapshot",
    "snapshot_files",
]
