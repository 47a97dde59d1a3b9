"""The way of an entry into the ring: at once where the host can write, else by way of pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.replay.records import Layout

SLOTS = 64  # entries that may be on their way to the device at the same time


class Writer:
    """Writes the frame and the record of an entry by one copy each, and without waiting for the device.

    A copy reads the pinned memory when the device gets to it, which may be long after the call. So every call
    has its own slot there, and before the first slot is used again the host waits once for all of them.
    """

    def __init__(self, frames: Tensor, records: Tensor, layout: Layout, slots: int | None = None) -> None:
        """`frames` (N, C, H, W) and `records` (N, bytes) are the ring; what is written goes there in place.

        With 0 slots, as is usual on the CPU, the host writes to the ring itself.
        """
        self._ring = (frames, records)
        self._slots = (SLOTS if frames.is_cuda else 0) if slots is None else slots
        self._host = (_slots(frames, self._slots), _slots(records, self._slots)) if self._slots else self._ring
        self._written = 0
        # The same memory as numpy sees it: its assignments cost a tenth of PyTorch's.
        self._frames: npt.NDArray[np.uint8] = self._host[0].numpy()
        self._records: npt.NDArray[np.void] = self._host[1].numpy().view(layout)[:, 0]

    def write(self, position: int, record: tuple[Any, ...], frame: npt.NDArray[np.uint8] | None = None) -> None:
        """Puts a record, with its fields in the layout's order, and perhaps a frame at `position`."""
        row = self._free_slot() if self._slots else position
        self._records[row] = record
        if frame is not None:
            self._frames[row] = frame
        if self._slots:
            for target, source in zip(self._ring[frame is None :], self._host[frame is None :], strict=True):
                target[position].copy_(source[row], non_blocking=True)

    def _free_slot(self) -> int:
        slot = self._written % self._slots
        if slot == 0 and self._written and self._ring[0].is_cuda:
            torch.cuda.current_stream(self._ring[0].device).synchronize()
        self._written += 1
        return slot


def _slots(ring: Tensor, count: int) -> Tensor:
    return torch.zeros((count, *ring.shape[1:]), dtype=ring.dtype, pin_memory=ring.is_cuda)
