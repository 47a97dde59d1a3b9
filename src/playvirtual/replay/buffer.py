"""The replay buffer: one entry per observed frame, with the action taken in it, on the training device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.kernels.gather import gather_rows

RecordType = np.dtype[np.void]
STAGING_SLOTS = 64  # entries that may be on their way to a GPU at the same time


class ReplayBuffer:
    """A ring buffer of `capacity` entries (frame, action, reward, terminated) in the order of time, on one device.

    Each frame is stored once; observations, which are stacks of frames, are put together when they are read. An
    episode that is truncated ends with an entry that holds its last frame and no action, so that the state to
    bootstrap from exists. Every entry carries the number of its episode, and a lost life begins a new episode:
    frames of one observation, rewards of one return and states of one sequence belong together if and only if
    their episode numbers agree.
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
        staging_slots: int | None = None,
    ) -> None:
        """Allocates all memory at once; `action_size` is None for discrete actions, else an action's length.

        Before an episode's first frame a stack holds zeros or, with `repeat_first`, that frame again.
        `staging_slots` is how many entries may wait in host memory for their copy to the device: by default 0 on
        the CPU, where entries are written directly, and `STAGING_SLOTS` on a GPU.
        """
        self.capacity, self.frame_stack, self.device = capacity, frame_stack, torch.device(device)
        self.repeat_first = repeat_first
        self.num_added = 0  # entries ever added; the entry with id i is at position i % capacity
        self._episode = 0

        # One frame more than there are entries: it stays zero and stands for the frames before an episode's start.
        self._padded_frames = torch.zeros(capacity + 1, *frame_shape, dtype=torch.uint8, device=self.device)
        self.frames = self._padded_frames[:capacity]
        record_type = make_record_type(action_size)
        records = torch.zeros(capacity, record_type.itemsize, dtype=torch.uint8, device=self.device)
        fields = field_views(records, record_type)
        self.actions = fields["actions"]  # (capacity,) int64 or (capacity, action_size) float32
        self.rewards = fields["rewards"]  # (capacity,) float32
        self.terminated = fields["terminated"]  # (capacity,) bool
        self.has_action = fields["has_action"]  # (capacity,) bool: False for an episode's last frame
        self.episodes = fields["episodes"].fill_(-1)  # (capacity,) int64
        self.entry_ids = fields["entry_ids"].fill_(-1)  # (capacity,) int64
        slots = (STAGING_SLOTS if self.device.type == "cuda" else 0) if staging_slots is None else staging_slots
        self._writer = StagedWriter(self.frames, records, record_type, slots)
        self._no_action = np.zeros(self.actions.shape[1:], np.float32)
        # The same number as `num_added`, where work that was captured on the device can read it.
        self._num_added = torch.zeros((), dtype=torch.int64, device=self.device)

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def add_obs(self, frame: npt.NDArray[np.uint8]) -> int:
        """Adds an entry for a frame in which no action has been taken yet, and returns its position."""
        position = self.num_added % self.capacity
        self._writer.write(position, (self._no_action, 0.0, False, False, self._episode, self.num_added), frame)
        self.num_added += 1
        self._num_added.fill_(self.num_added)
        return position

    def add_transition(self, action: npt.ArrayLike, reward: float, *, terminated: bool) -> None:
        """Completes the newest entry by the action taken in its frame and by what followed."""
        newest = self.num_added - 1
        self._writer.write(newest % self.capacity, (action, reward, terminated, True, self._episode, newest))
        self._episode += terminated

    def end_episode(self, last_frame: npt.NDArray[np.uint8]) -> None:
        """Ends an episode that was truncated; `last_frame` is the state to bootstrap from."""
        self.add_obs(last_frame)
        self._episode += 1

    def valid_starts(self, span: int, *, within_episode: bool = False) -> Tensor:
        """(capacity,) bool: the entries with an action, a complete frame stack and `span` entries after them.

        `within_episode` asks in addition that those entries belong to the same episode.
        """
        newest = self._num_added - 1 - span
        # A full ring buffer has lost the frames before its oldest entries, whose frame stacks are incomplete.
        oldest = (self._num_added > self.capacity) * (self._num_added - self.capacity + self.frame_stack - 1)
        valid = (self.entry_ids >= oldest) & (self.entry_ids <= newest) & self.has_action
        if within_episode:
            valid = valid & (self.episodes == self.episodes.roll(-span))
        return valid

    def sequence_positions(self, index: Tensor, steps: int) -> Tensor:
        """(B,) positions -> (B, steps): the positions of the entries index, index + 1, …, index + steps − 1."""
        offsets = torch.arange(steps, device=self.device)
        return torch.remainder(index[:, None] + offsets, self.capacity)

    def observations(self, index: Tensor) -> Tensor:
        """(…) positions -> (…, stack·C, H, W) uint8: the observations there, oldest frame first."""
        back = torch.arange(self.frame_stack - 1, -1, -1, device=self.device)
        positions = torch.remainder(index[..., None] - back, self.capacity)  # (…, stack)
        same_episode = self.episodes[positions] == self.episodes[index][..., None]
        # A position before the oldest entry holds a newer one, perhaps of the same, long episode.
        visible = same_episode & (self.entry_ids[positions] == self.entry_ids[index][..., None] - back)
        if self.repeat_first:
            first = index[..., None] - visible.sum(-1, keepdim=True) + 1
            positions = torch.where(visible, positions, torch.remainder(first, self.capacity))
        else:
            positions = positions.masked_fill(~visible, self.capacity)
        return gather_rows(self._padded_frames, positions).flatten(-4, -3)  # from (…, stack, C, H, W)

    def state_dict(self) -> dict[str, Any]:
        """A copy of all entries without their frames, which are too large to copy (see snapshot.py)."""
        fields = {name: field[: len(self)].contiguous() for name, field in self._fields().items()}
        return {"num_added": self.num_added, "episode": self._episode, **fields}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned, in place; the caller restores `frames`."""
        self.num_added, self._episode = state["num_added"], state["episode"]
        self._num_added.fill_(self.num_added)
        for name, field in self._fields().items():
            field[: len(self)].copy_(state[name])

    def _fields(self) -> dict[str, Tensor]:
        names = ("actions", "rewards", "terminated", "has_action", "episodes", "entry_ids")
        return {name: getattr(self, name) for name in names}


def make_record_type(action_size: int | None) -> RecordType:
    """The fields of one entry other than its frame, as one row of bytes; `action_size` as in ReplayBuffer."""
    action = np.dtype(np.int64) if action_size is None else np.dtype((np.float32, (action_size,)))
    fields = [
        ("actions", action),
        ("rewards", np.dtype(np.float32)),
        ("terminated", np.dtype(np.bool_)),
        ("has_action", np.dtype(np.bool_)),
        ("episodes", np.dtype(np.int64)),
        ("entry_ids", np.dtype(np.int64)),
    ]
    return np.dtype(fields, align=True)  # PyTorch's views need aligned fields


def field_views(records: Tensor, record_type: RecordType) -> dict[str, Tensor]:
    """(N, bytes) uint8 records -> every field as a view of them, (N,) or, for vectors, (N, length)."""
    assert record_type.fields is not None
    views = {}
    for name, (field, offset, *_) in record_type.fields.items():
        dtype = torch.from_numpy(np.zeros(0, field.base)).dtype
        view = records[:, offset : offset + field.itemsize].view(dtype)
        views[name] = view if field.shape else view[:, 0]
    return views


class StagedWriter:
    """Writes an entry to the device by one copy of its frame and one of its record, without waiting for the device.

    A copy reads pinned host memory when the device gets to it, which may be long after the call. So every call has
    a slot of its own there, and the host waits for all copies once before it uses the first slot again.
    """

    def __init__(self, frames: Tensor, records: Tensor, record_type: RecordType, slots: int) -> None:
        """`frames` (N, C, H, W) and `records` (N, bytes) are written in place; with 0 slots by the host itself."""
        self._device, self._slots = (frames, records), slots
        self._host = (_staging_memory(frames, slots), _staging_memory(records, slots)) if slots else self._device
        self._writes = 0
        # The same memory as NumPy arrays, because NumPy's assignments cost a tenth of PyTorch's.
        self._frames: npt.NDArray[np.uint8] = self._host[0].numpy()
        self._records: npt.NDArray[np.void] = self._host[1].numpy().view(record_type)[:, 0]

    def write(self, position: int, record: tuple[Any, ...], frame: npt.NDArray[np.uint8] | None = None) -> None:
        """Writes a record, with its fields in the record type's order, and a frame if there is one."""
        row = self._next_slot() if self._slots else position
        self._records[row] = record
        if frame is not None:
            self._frames[row] = frame
        if self._slots:
            first = 0 if frame is not None else 1  # without a frame only the records are copied
            for target, source in zip(self._device[first:], self._host[first:], strict=True):
                target[position].copy_(source[row], non_blocking=True)

    def _next_slot(self) -> int:
        slot = self._writes % self._slots
        if slot == 0 and self._writes and self._device[0].is_cuda:
            torch.cuda.current_stream(self._device[0].device).synchronize()
        self._writes += 1
        return slot


def _staging_memory(ring: Tensor, slots: int) -> Tensor:
    return torch.zeros((slots, *ring.shape[1:]), dtype=ring.dtype, pin_memory=ring.is_cuda)
