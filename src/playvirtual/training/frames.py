"""The replay's frames as files: chunks of the ring, compressed, each named after what it holds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from playvirtual.replay import Replay

CHUNK_BYTES = 2**23  # of raw frames per file
PREFIX = "frames-"


def files(replay: Replay) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(name, content) of every chunk that holds anything.

    The name tells the chunk's place and how many entries had been written when its newest one was: within one
    run the same name means the same content, so a file that exists need not be written again.
    """
    for start, stop in _spans(replay):
        last = (replay.head - 1) % replay.capacity  # where the newest entry lies
        written = replay.head if start <= last < stop else replay.head - (last - (stop - 1)) % replay.capacity
        yield f"{PREFIX}{start:09d}-{written:012d}.zlib", lambda a=start, b=stop: _encode(_host(replay, a, b))  # type: ignore[misc]


def restore(replay: Replay, read: Callable[[str], bytes]) -> None:
    """Fills the frames of a replay whose `head` is back at its old value; `read` gives a file's content."""
    for (name, _), (start, stop) in zip(files(replay), _spans(replay), strict=True):
        shape = (stop - start, *replay.frames.shape[1:])
        replay.frames[start:stop].copy_(torch.from_numpy(_decode(read(name), shape)))


def _spans(replay: Replay) -> list[tuple[int, int]]:
    """[start, stop) of every chunk, in ring positions; the last one ends with what has been written."""
    size = max(1, CHUNK_BYTES // replay.frames[0].numel())
    return [(start, min(start + size, len(replay))) for start in range(0, len(replay), size)]


def _host(replay: Replay, start: int, stop: int) -> npt.NDArray[np.uint8]:
    frames: npt.NDArray[np.uint8] = replay.frames[start:stop].cpu().numpy()
    return frames


def _encode(frames: npt.NDArray[np.uint8]) -> bytes:
    """Most pixels are those of the frame before: what differs is little, and the rest are zeros."""
    changes = frames.copy()
    changes[1:] ^= frames[:-1]
    return zlib.compress(changes.data, level=1)


def _decode(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    changes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)
    frames: npt.NDArray[np.uint8] = np.bitwise_xor.accumulate(changes, axis=0)
    return frames
