"""The replay buffer's frames as files of a checkpoint: compressed chunks, each named after its content."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from playvirtual.replay.buffer import ReplayBuffer

CHUNK_BYTES = 2**23  # of uncompressed frames per file


def snapshot_files(replay: ReplayBuffer) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of every chunk's file and a function that returns its content.

    The name holds the chunk's first position and how many entries had been added when its newest one was. Within
    one run the same name means the same content, so a file that exists need not be written again.
    """
    for start, stop in _chunks(replay):
        newest = (replay.num_added - 1) % replay.capacity  # position of the newest entry
        if start <= newest < stop:
            num_added = replay.num_added
        else:
            num_added = replay.num_added - (newest - (stop - 1)) % replay.capacity
        yield f"frames-{start:09d}-{num_added:012d}.zlib", partial(_read_chunk, replay, start, stop)


def restore_snapshot(replay: ReplayBuffer, read: Callable[[str], bytes]) -> None:
    """Fills the frames of a replay buffer whose other state is loaded already; `read` returns a file's content."""
    for (name, _), (start, stop) in zip(snapshot_files(replay), _chunks(replay), strict=True):
        shape = (stop - start, *replay.frames.shape[1:])
        replay.frames[start:stop].copy_(torch.from_numpy(_decode(read(name), shape)))


def _chunks(replay: ReplayBuffer) -> list[tuple[int, int]]:
    """The positions [start, stop) of every chunk; the last one stops at the end of what has been written."""
    size = max(1, CHUNK_BYTES // replay.frames[0].numel())
    return [(start, min(start + size, len(replay))) for start in range(0, len(replay), size)]


def _read_chunk(replay: ReplayBuffer, start: int, stop: int) -> bytes:
    return _encode(replay.frames[start:stop].cpu().numpy())


def _encode(frames: npt.NDArray[np.uint8]) -> bytes:
    """Each frame as its difference (XOR) to the one before, which is mostly zeros, compressed."""
    changes = frames.copy()
    changes[1:] ^= frames[:-1]
    return zlib.compress(changes.data, level=1)


def _decode(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    changes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)
    frames: npt.NDArray[np.uint8] = np.bitwise_xor.accumulate(changes, axis=0)
    return frames
