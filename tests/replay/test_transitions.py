"""Transitions and windows against a plain list of episodes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import Replay, search
from playvirtual.replay.transitions import Transitions, Windows, transitions_at, windows_at
from tests.replay.storing import store

GAMMA, STACK = 0.9, 3


def sample_transitions(replay: Replay, *, batch_size: int, gamma: float, generator: torch.Generator) -> Transitions:
    index = search(replay.startable(1).to(torch.float32), batch_size, generator)
    return transitions_at(replay, index, gamma=gamma)


def sample_windows(replay: Replay, *, batch_size: int, K: int, generator: torch.Generator) -> Windows:
    startable = replay.startable(K, within_episode=True)
    index = search(startable.to(torch.float32), batch_size, generator)
    return windows_at(replay, index, startable[index], K=K)


def filled(episodes: list[tuple[int, bool]], capacity: int = 400) -> tuple[Replay, list[tuple[int, int]]]:
    """A replay of episodes (length, ends by a time limit); frame, action and reward are the step's own number.

    Beside it (episode, step) by number, closing frames included; the number is the reward.
    """
    replay = Replay(capacity, (1, 2, 2), STACK, 1)
    where: list[tuple[int, int]] = []

    def frame(number: int) -> np.ndarray:
        return np.full((1, 2, 2), number + 1, np.uint8)

    for e, (length, limit) in enumerate(episodes):
        for step in range(length):
            number, last = len(where), step == length - 1
            where.append((e, step))
            closing = frame(number + 1) if last and limit else None
            store(replay, frame(number), [number], float(number), terminal=last and not limit, last=closing)
        if limit:
            where.append((e, length))
    return replay, where


def stack_of(where: list[tuple[int, int]], number: int) -> list[int]:
    """What the frames of an observation hold: number + 1 each, 0 before the episode's start."""
    _, step = where[number]
    return [number - back + 1 if back <= step else 0 for back in range(STACK - 1, -1, -1)]


lists_of_episodes = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(lists_of_episodes, st.integers(0, 2**31 - 1))
def test_transitions(episodes: list[tuple[int, bool]], seed: int) -> None:
    replay, where = filled([*episodes, (2, True)])
    batch = sample_transitions(replay, batch_size=64, gamma=GAMMA, generator=torch.Generator().manual_seed(seed))
    lengths = [*episodes, (2, True)]
    for b in range(64):
        number = int(batch.rewards[b])
        episode, step = where[number]
        length, limit = lengths[episode]
        assert step < length  # never from a closing frame
        assert batch.actions[b].tolist() == [number]
        assert batch.observations[b, :, 0, 0].tolist() == stack_of(where, number)
        terminal = step == length - 1 and not limit
        assert float(batch.discounts[b]) == (0.0 if terminal else np.float32(GAMMA))
        if not terminal:  # also after the last action before a time limit
            assert batch.next_observations[b, :, 0, 0].tolist() == stack_of(where, number + 1)


@settings(max_examples=60, deadline=None)
@given(lists_of_episodes, st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_windows_stay_within_an_episode(episodes: list[tuple[int, bool]], K: int, seed: int) -> None:
    replay, where = filled(episodes)
    batch = sample_windows(replay, batch_size=64, K=K, generator=torch.Generator().manual_seed(seed))
    exists = any(length + limit > K for length, limit in episodes)
    assert batch.valid.tolist() == [float(exists)] * 64
    if not exists:
        return
    for b in range(64):
        first = int(batch.actions[b, 0])
        numbers = range(first, first + K + 1)
        assert len({where[n][0] for n in numbers}) == 1
        assert batch.actions[b, :, 0].tolist() == list(numbers[:K])
        assert batch.observations[b, :, :, 0, 0].tolist() == [stack_of(where, n) for n in numbers]


def test_every_step_and_every_window_is_drawn() -> None:
    replay, where = filled([(5, True), (4, False), (2, True), (7, True)])
    generator = torch.Generator().manual_seed(0)
    batch = sample_transitions(replay, batch_size=4000, gamma=GAMMA, generator=generator)
    steps = {n for n, (e, step) in enumerate(where) if step < [5, 4, 2, 7][e]}
    assert set(batch.rewards.int().tolist()) == steps
    counts = torch.bincount(batch.rewards.int(), minlength=len(where))[sorted(steps)]
    assert (counts / 4000 - 1 / len(steps)).abs().max() < 0.02  # uniform

    windows = sample_windows(replay, batch_size=2000, K=3, generator=generator)
    starts = {n for n in range(len(where) - 3) if where[n][0] == where[n + 3][0]}
    # 5 steps and a closing frame: 3 windows; 4 steps: 1; 2 steps and a closing frame: none; 7 and a frame: 5.
    assert len(starts) == 9
    assert set(windows.actions[:, 0, 0].int().tolist()) == starts


def test_a_full_ring_never_shows_overwritten_frames() -> None:
    replay, where = filled([(9, True)] * 20, capacity=50)
    generator = torch.Generator().manual_seed(0)
    batch = sample_transitions(replay, batch_size=2000, gamma=GAMMA, generator=generator)
    for reward, observation in zip(batch.rewards.int().tolist(), batch.observations, strict=True):
        assert reward >= len(where) - 50
        assert observation[:, 0, 0].tolist() == stack_of(where, reward)
    windows = sample_windows(replay, batch_size=2000, K=6, generator=generator)
    for actions in windows.actions[:, :, 0].int().tolist():
        assert actions == list(range(actions[0], actions[0] + 6))
        assert where[actions[0]][0] == where[actions[0] + 6][0]
