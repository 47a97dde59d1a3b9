"""The small numbers of an entry side by side in memory: one row to write, one column each to read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Layout = np.dtype[np.void]


def layout_of(action_size: int | None) -> Layout:
    """The fields of an entry and where in its row they lie; `action_size` is None for discrete actions."""
    action = np.dtype(np.int64) if action_size is None else np.dtype((np.float32, (action_size,)))
    fields = [
        ("actions", action),
        ("rewards", np.dtype(np.float32)),
        ("terminals", np.dtype(np.bool_)),
        ("acted", np.dtype(np.bool_)),
        ("episodes", np.dtype(np.int64)),
        ("numbers", np.dtype(np.int64)),
    ]
    return np.dtype(fields, align=True)  # aligned as the device, too, wants its numbers


def columns(rows: Tensor, layout: Layout) -> dict[str, Tensor]:
    """(N, bytes) uint8 rows -> every field as a view of all of them, (N,) or, for a vector, (N, length)."""
    assert layout.fields is not None
    found = {}
    for name, (field, offset, *_) in layout.fields.items():
        dtype = torch.from_numpy(np.zeros(0, field.base)).dtype
        column = rows[:, offset : offset + field.itemsize].view(dtype)
        found[name] = column if field.shape else column[:, 0]
    return found
