"""Sequences from foreign ring buffers, held to a plain list of steps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv


def ring(total: int, capacity: int, lengths: int) -> dict[str, Any]:
    """`total` steps of two environments written into a ring. Episodes have `lengths` steps.

    Observation and action are the number of the step, plus 1000 in the second environment; the last observation of an
    episode is that number plus 0.5, as what is shown at its end is not what the next one begins with.
    """
    observations, next_observations, dones = np.zeros((3, capacity, 2), np.float32)
    actions = np.zeros((capacity, 2), np.int64)
    for i in range(total):
        for env in range(2):
            number, done = i + 1000 * env, (i + env) % lengths == lengths - 1
            at = i % capacity, env
            observations[at], actions[at], dones[at] = number, number, done
            next_observations[at] = number + (0.5 if done else 1.0)
    filled = {"size": min(total, capacity), "position": total % capacity}
    arrays = {"observations": observations, "next_observations": next_observations}
    return {**arrays, "actions": actions, "dones": dones, **filled}


@pytest.mark.parametrize("ends_shown", [True, False])
@pytest.mark.parametrize("total", [7, 20, 33])
def test_sequences_are_consecutive_steps_and_the_mask_ends_with_the_episode(total: int, ends_shown: bool) -> None:
    K, lengths, capacity = 4, 5, 20
    given = ring(total, capacity, lengths)
    if not ends_shown:
        given["next_observations"] = None
    observations, actions, mask = pv.sample_sequences(**given, K=K, batch_size=2000)
    assert [part.shape[1] for part in (observations, actions, mask)] == [K + 1, K, K + 1]
    starts = set()
    for states, taken, valid in zip(observations.tolist(), actions.tolist(), mask.tolist(), strict=True):
        first, env = taken[0] % 1000, taken[0] // 1000
        starts.add((first, env))
        assert taken == [taken[0] + k for k in range(K)]
        before_end = lengths - 1 - (first + env) % lengths  # steps until the one that ends the episode
        last = before_end + 1 if ends_shown else before_end  # the last state of the episode that is recorded
        assert valid == [float(k <= last) for k in range(K + 1)]
        expected = [taken[0] + k - (0.5 if k == before_end + 1 else 0.0) for k in range(K + 1)]
        assert [s for s, v in zip(states, valid, strict=True) if v] == [
            e for e, v in zip(expected, valid, strict=True) if v
        ]
    oldest, longest = max(total - capacity, 0), K if ends_shown else K + 1
    assert starts == {(i, env) for i in range(oldest, total - longest + 1) for env in range(2)}


def test_a_ring_may_lie_on_another_device_than_the_cpu() -> None:
    """PyTorch's device "meta", which has shapes and no content, stands for a GPU here."""
    given = ring(20, 20, 5)
    there = {n: torch.as_tensor(v).to("meta") if isinstance(v, np.ndarray) else v for n, v in given.items()}
    for found in (
        pv.sample_sequences(**there, K=3, batch_size=4),
        pv.sample_sequences(**{**there, "next_observations": None}, K=3, batch_size=4),
    ):
        assert [tuple(part.shape) for part in found] == [(4, 4), (4, 3), (4, 4)]
        assert {part.device.type for part in found} == {"meta"}


def test_the_generator_decides_the_draw() -> None:
    given = ring(20, 20, 5)
    one, two = (
        pv.sample_sequences(**given, K=2, batch_size=50, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, two, strict=True))


def test_images_and_vectors_of_actions_keep_their_shapes() -> None:
    observations, actions = np.zeros((9, 1, 3, 8, 8), np.uint8), np.zeros((9, 1, 2), np.float32)
    batch = pv.sample_sequences(observations, actions, np.zeros((9, 1)), K=3, batch_size=5, size=9, position=0)
    assert batch.observations.shape == (5, 4, 3, 8, 8)
    assert batch.observations.dtype == torch.uint8
    assert batch.actions.shape == (5, 3, 2)


def test_too_few_entries_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size: 3 is not allowed with K=4; allowed: 4 to 20 entries, the "):
        pv.sample_sequences(**ring(3, 20, 5), K=4, batch_size=1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("actions", [[0, 1]], "actions: a list is not allowed"),
        ("observations", np.zeros(20), "observations: of shape (20,) is not allowed"),
        ("dones", torch.zeros(20), "dones: of shape (20,) is not allowed"),
        ("dones", np.zeros((19, 2)), "dones: of shape (19, 2) is not allowed; allowed: (20, 2, …), as actions have it"),
        (
            "next_observations",
            np.zeros((20, 1)),
            "next_observations: of shape (20, 1) is not allowed; allowed: (20, 2, ",
        ),
        ("size", 21, "size: 21 is not allowed with K=2; allowed: 2 to 20 entries, the buffer's capacity"),
        ("K", -1, "K: -1 is not allowed; allowed: whole numbers from 1 on"),
        ("K", 2.0, "K: 2.0 is not allowed; allowed: whole numbers from 1 on"),
        ("batch_size", 0, "batch_size: 0 is not allowed; allowed: whole numbers from 1 on"),
    ],
)
def test_what_is_no_ring_buffer_of_environments_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        pv.sample_sequences(**ring(20, 20, 5) | {"K": 2, "batch_size": 1} | {name: value})
