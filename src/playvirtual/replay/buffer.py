"""The ring of experience: one entry per observed frame, with the action that followed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.replay.records import columns, layout_of
from playvirtual.replay.writer import Writer


class Replay:
    """Entries (frame, action, reward, terminal) in the order of time, `capacity` of them, on one device.

    An episode that ends by a time limit is closed by an entry that holds its last frame and no action, so that
    the state to bootstrap from exists. Every entry carries the number of its episode (a lost life begins a new
    one): frames of one observation, rewards of one return, states of one sequence belong together if and only
    if those numbers agree, which is all the bookkeeping there is.
    """

    def __init__(
        self,
        capacity: int,
        frame_shape: tuple[int, int, int],
        frame_stack: int,
        action_size: int | None,
        device: torch.device | str = "cpu",
        *,
        repeat_first: bool = False,
    ) -> None:
        """`action_size` is None for discrete actions, else the length of an action vector.

        Before an episode's first frame a stack holds zeros or, with `repeat_first`, that frame again.
        """
        self.capacity, self.frame_stack, self.device = capacity, frame_stack, torch.device(device)
        self.repeat_first = repeat_first
        self.head = 0  # entries ever written; entry number i lives at i % capacity
        self._episode = 0

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=self.device)

        # One frame more than there are entries: it stays black, for what a stack shows before its episode.
        self._pictures = torch.zeros(capacity + 1, *frame_shape, dtype=torch.uint8, device=self.device)
        self.frames = self._pictures[:capacity]
        layout = layout_of(action_size)
        records = zeros(layout.itemsize, dtype=torch.uint8)
        column = columns(records, layout)
        self.actions = column["actions"]  # (capacity,) int64 or (capacity, action_size) float32
        self.rewards = column["rewards"]
        self.terminals = column["terminals"]
        self.acted = column["acted"]  # False: a closing entry, no action followed
        self.episodes = column["episodes"].fill_(-1)
        self.numbers = column["numbers"].fill_(-1)  # of the entries here
        self._writer = Writer(self.frames, records, layout)
        self._no_action = np.zeros(self.actions.shape[1:], np.float32)
        self._head = torch.zeros((), dtype=torch.int64, device=self.device)  # `head`, for the device to read

    def __len__(self) -> int:
        return min(self.head, self.capacity)

    def begin(self, frame: npt.NDArray[np.uint8]) -> int:
        """Stores a frame before it is known what will be done in it; returns its ring position."""
        position = self.head % self.capacity
        self._writer.write(position, (self._no_action, 0.0, False, False, self._episode, self.head), frame)
        self.head += 1
        self._head.fill_(self.head)
        return position

    def complete(self, action: npt.ArrayLike, reward: float, *, terminal: bool) -> None:
        """Adds to the newest frame what was done in it and what came of it."""
        newest = self.head - 1
        self._writer.write(newest % self.capacity, (action, reward, terminal, True, self._episode, newest))
        self._episode += terminal

    def close(self, last: npt.NDArray[np.uint8]) -> None:
        """Ends the episode without a terminal; `last` is the frame to bootstrap from."""
        self.begin(last)
        self._episode += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything but the frames, of the entries written so far; the frames are too many to copy."""
        n = len(self)
        written = {name: column[:n].contiguous() for name, column in self._columns().items()}
        return {"head": self.head, "episode": self._episode, **written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, in place; `frames` is the caller's to fill."""
        self.head, self._episode = state["head"], state["episode"]
        self._head.fill_(self.head)
        for name, column in self._columns().items():
            column[: len(self)].copy_(state[name])

    def _columns(self) -> dict[str, Tensor]:
        names = ("actions", "rewards", "terminals", "acted", "episodes", "numbers")
        return {name: getattr(self, name) for name in names}

    def startable(self, span: int, *, within_episode: bool = False) -> Tensor:
        """(capacity,) bool: where a sequence may start whose `span` following entries exist too.

        `within_episode` asks in addition that those entries belong to the same episode.
        """
        newest = self._head - 1 - span
        # A full ring has lost the frames before its oldest entries: these have no complete frame stack.
        oldest = (self._head > self.capacity) * (self._head - self.capacity + self.frame_stack - 1)
        ok = (self.numbers >= oldest) & (self.numbers <= newest) & self.acted
        if within_episode:
            ok = ok & (self.episodes == self.episodes.roll(-span))
        return ok

    def ahead(self, index: Tensor, steps: int) -> Tensor:
        """(B, steps): ring positions of the entries index, index + 1, …"""
        offsets = torch.arange(steps, device=self.device)
        return torch.remainder(index[:, None] + offsets, self.capacity)

    def observations(self, index: Tensor) -> Tensor:
        """(…) ring positions -> (…, stack·C, H, W) uint8, oldest frame first."""
        back = torch.arange(self.frame_stack - 1, -1, -1, device=self.device)
        positions = torch.remainder(index[..., None] - back, self.capacity)  # (…, stack)
        same_episode = self.episodes[positions] == self.episodes[index][..., None]
        # Around the ring's seam the entry found may be a newer one of the same, long episode.
        visible = same_episode & (self.numbers[positions] == self.numbers[index][..., None] - back)
        if self.repeat_first:
            earliest = index[..., None] - visible.sum(-1, keepdim=True) + 1
            positions = torch.where(visible, positions, torch.remainder(earliest, self.capacity))
        else:
            positions = positions.masked_fill(~visible, self.capacity)
        return self._pictures[positions].flatten(-4, -3)  # from (…, stack, C, H, W)
