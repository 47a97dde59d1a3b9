"""Sequences of K steps from the ring buffer of another library: what the whole objective learns from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from playvirtual.method.samplers import check_whole


class Sequences(NamedTuple):
    """B sequences of K recorded steps."""

    observations: Tensor  # (B, K+1, …): s_t … s_{t+K}
    actions: Tensor  # (B, K, …a): a_t … a_{t+K−1}
    mask: Tensor  # (B, K+1): 1 where a state belongs to the episode of s_t, else 0


def sample_sequences(
    observations: Any,
    actions: Any,
    dones: Any,
    *,
    K: int,
    batch_size: int,
    size: int,
    position: int,
    next_observations: Any = None,
    device: Any = None,
    generator: torch.Generator | None = None,
) -> Sequences:
    """Uniformly drawn sequences from a ring buffer, whose arrays or tensors are (capacity, environments, …).

    `size` is how many entries are filled, `position` where the next one will be written: a sequence never crosses it.
    Entries count back from `position`, which is `size` in a ring that was filled from its beginning and is not full.
    `dones` says after which step an episode ended, terminated or truncated. With `next_observations` the last
    observation of an episode counts too; without, the states are those of K + 1 consecutive entries.
    """
    for name, number in (("K", K), ("batch_size", batch_size)):
        check_whole(name, number, 1)
    capacity, environments = _checked_sizes(observations, actions, dones, next_observations)
    entries = K if next_observations is not None else K + 1
    if not entries <= size <= capacity:
        raise ValueError(
            f"size: {size} is not allowed with K={K}; allowed: {entries} to {capacity} entries, the buffer's capacity"
        )
    start = torch.randint(size - entries + 1, (batch_size,), generator=generator)
    column = torch.randint(environments, (batch_size, 1), generator=generator)
    rows = (position - size + start[:, None] + torch.arange(entries)) % capacity  # (B, K) or (B, K+1)

    def read(array: Any, chosen: Tensor) -> Tensor:
        return torch.as_tensor(array)[chosen, column]

    alive = 1.0 - read(dones, rows[:, :K]).to(torch.get_default_dtype())  # (B, K): 0 where the step ended the episode
    alive = torch.cat([alive.new_ones(batch_size, 1), alive], 1).cumprod(1)  # (B, K+1)
    if next_observations is None:
        states, mask = read(observations, rows), alive
    else:
        states = torch.cat([read(observations, rows[:, :1]), read(next_observations, rows)], 1)
        mask = torch.cat([alive[:, :1], alive[:, :K]], 1)
    return Sequences(states.to(device), read(actions, rows[:, :K]).to(device), mask.to(device))


def _checked_sizes(observations: Any, actions: Any, dones: Any, next_observations: Any) -> tuple[int, int]:
    """(capacity, environments) of a ring buffer; raises a ValueError for an array that has other ones."""
    for name, array in (("observations", observations), ("actions", actions), ("dones", dones)):
        if len(getattr(array, "shape", ())) < 2:
            kind = f"of shape {tuple(array.shape)}" if hasattr(array, "shape") else f"a {type(array).__name__}"
            raise ValueError(f"{name}: {kind} is not allowed; allowed: arrays or tensors (capacity, environments, …)")
    capacity, environments = actions.shape[:2]
    for name, array in (("observations", observations), ("dones", dones), ("next_observations", next_observations)):
        if array is not None and tuple(array.shape[:2]) != (capacity, environments):
            raise ValueError(
                f"{name}: of shape {tuple(array.shape)} is not allowed; allowed: ({capacity}, {environments}, …), as "
                "actions have it"
            )
    return capacity, environments
