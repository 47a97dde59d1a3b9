"""Everything that is drawn and read from the replay buffer, beside a list of episodes that loops read.

Streams of episodes are random: lengths, how they end, how often the ring wraps around, when batches are read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import PrioritizedSampler, ReplayBuffer, UniformSampler
from playvirtual.replay.batches import rainbow_batch, sequence_batch, transition_batch
from tests.replay.plain_replay import PlainPriorities, PlainReplay

GAMMA = 0.8
FRAME = (2, 1, 2)  # two channels and two pixels, so that their order shows


class Setting(NamedTuple):
    """The shape of a buffer and of the samples that are read from it."""

    capacity: int
    stack: int
    K: int
    n: int
    repeat_first: bool
    action_size: int | None


@st.composite
def some_settings(draw: st.DrawFn) -> Setting:
    stack, K, n = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(1, 5))
    room = max(K, n) + stack  # what a configuration must leave
    capacity = draw(st.integers(room, 40))
    return Setting(capacity, stack, K, n, draw(st.booleans()), draw(st.sampled_from([None, 2])))


# How each step ends; "life" is a lost life: terminated, and the next frame is of the same game.
STREAM = st.lists(
    st.sampled_from(["continues"] * 7 + ["terminated", "truncated", "life"]), min_size=12, max_size=40
).map(lambda ends: [*ends, "continues"])


def numbered_frame(number: int) -> npt.NDArray[np.uint8]:
    """A frame that shares no number with the 60 before and after it, more than a buffer holds here."""
    return np.arange(4 * number + 1, 4 * number + 5).astype(np.uint8).reshape(FRAME)


class Both:
    """The buffer and the list, filled alike."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.replay = ReplayBuffer(
            setting.capacity, FRAME, setting.stack, setting.action_size, repeat_first=setting.repeat_first
        )
        self.plain = PlainReplay(setting.capacity, setting.stack, repeat_first=setting.repeat_first)
        self.shown = 0

    def observe(self) -> None:
        frame = self._next_frame()
        position = self.replay.add_obs(frame)
        self.plain.observe(frame)
        assert position == (len(self.plain.entries) - 1) % self.setting.capacity
        assert (self.replay.num_added, len(self.replay)) == (
            len(self.plain.entries),
            min(len(self.plain.entries), self.setting.capacity),
        )

    def act(self, end: str) -> None:
        number = len(self.plain.entries)
        action: Any = 3 * number + 1 if self.setting.action_size is None else np.float32([number / 4, -number / 8])
        reward = (37 * number) % 19 - 9.5
        terminated = end in ("terminated", "life")
        self.replay.add_transition(action, reward, terminated=terminated)
        self.plain.act(action, reward, terminated=terminated)
        if end == "truncated":
            frame = self._next_frame()
            self.replay.end_episode(frame)
            self.plain.truncate(frame)

    def _next_frame(self) -> npt.NDArray[np.uint8]:
        self.shown += 1
        return numbered_frame(self.shown)

    @property
    def due(self) -> bool:
        """Whether to compare now: at every seventh frame, when the ring is full, and when it has just lost a frame."""
        return self.shown > 1 and (self.shown % 7 == 0 or self.shown - self.setting.capacity in (0, 1))

    def positions(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor([number % self.setting.capacity for number in numbers], dtype=torch.int64)

    def check_starts(self, span: int, within_episode: bool) -> torch.Tensor:
        """Where a sample may start; the positions of those starts."""
        numbers = self.plain.drawable(span, within_episode=within_episode)
        valid = self.replay.valid_starts(span, within_episode=within_episode)
        assert torch.nonzero(valid).flatten().tolist() == sorted(n % self.setting.capacity for n in numbers)
        return self.positions(numbers)

    def check_batches(self) -> None:
        """What each function reads at every start that it may be asked for."""
        K, n = self.setting.K, self.setting.n
        starts = self.check_starts(max(K, n), False)
        if len(starts):
            weights = torch.linspace(0.2, 1, len(starts))
            batch = rainbow_batch(self.replay, starts, weights, K=K, n_step=n, gamma=GAMMA)
            assert batch.sequences.positions.tolist() == starts.tolist()
            assert batch.weights.tolist() == weights.tolist()
            self.plain.check_rainbow(batch, K=K, n=n, gamma=GAMMA)
            images = batch.images()
            assert images is not None
            both = torch.cat([batch.sequences.observations.flatten(0, 1), batch.next_observations])
            assert torch.equal(images, both)
        starts = self.check_starts(1, False)
        if len(starts):
            transitions = transition_batch(self.replay, starts, gamma=GAMMA)
            assert transitions.positions.tolist() == starts.tolist()
            self.plain.check_transitions(transitions, GAMMA)
        starts = self.check_starts(K, True)
        if len(starts):
            allowed = torch.arange(len(starts)) % 3 > 0
            sequences = sequence_batch(self.replay, starts, allowed, K=K)
            assert sequences.positions.tolist() == starts.tolist()
            self.plain.check_sequences(sequences, K, [[float(flag)] * (K + 1) for flag in allowed])


@settings(max_examples=32)
@given(some_settings(), STREAM)
def test_starts_and_batches(setting: Setting, stream: list[str]) -> None:
    """Drawable starts, observations, recorded actions, masks, n-step returns and bootstrap observations."""
    both = Both(setting)
    for end in stream:
        both.observe()
        if both.due:  # as before env.step: nothing is known of the newest frame's action
            both.check_batches()
        both.act(end)
        if both.due:
            both.check_batches()


@settings(max_examples=26)
@given(
    some_settings(),
    STREAM,
    st.sampled_from([0.0, 0.5, 0.7, 1.0]),
    st.integers(0, 1000),
)
def test_prioritised_batches(setting: Setting, stream: list[str], alpha: float, seed: int) -> None:
    """Priorities after every call, the weights of a batch for three β, and a batch's content at what was drawn.

    New priorities lie between 10⁻⁷ and 10⁷, and most of them within 1/30 and 30, so that no weight is 0.
    """
    both, K, n = Both(setting), setting.K, setting.n
    generator, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    sampler = PrioritizedSampler(both.replay, generator, batch_size=5, K=K, n_step=n, gamma=GAMMA, alpha=alpha)
    plain = PlainPriorities(both.plain, max(K, n), alpha)
    for end in stream:
        both.observe()
        sampler.on_append()
        np.testing.assert_allclose(sampler.priorities, plain.powers(), rtol=1e-5)
        both.act(end)
        if not both.due and both.shown % 4:
            continue
        sampler.on_append()
        powers = torch.tensor(plain.powers())
        np.testing.assert_allclose(sampler.priorities, powers, rtol=1e-5)
        for beta in (0.0, 0.4, 1.0) if powers.any() else ():
            batch = sampler.sample({"beta": torch.tensor(beta)})
            positions = batch.sequences.positions
            assert (powers[positions] > 0).all()
            np.testing.assert_allclose(batch.weights, plain.weights(positions, beta), rtol=1e-4)
            both.plain.check_rainbow(batch, K=K, n=n, gamma=GAMMA)
            assert sampler.positions(batch)["sequences"].tolist() == positions.tolist()
        if powers.any():
            by_position = {position: 10 ** (random.uniform(-1.5, 1.5)) for position in positions.tolist()}
            by_position[int(positions[0])] *= 10 ** random.choice([-5.5, 0.0, 5.5])
            new = torch.tensor([by_position[position] for position in positions.tolist()], dtype=torch.float32)
            sampler.update_priorities(batch, new)
            plain.update(positions, new)
            np.testing.assert_allclose(sampler.priorities, plain.powers(), rtol=1e-5)


@settings(max_examples=26)
@given(some_settings(), STREAM, st.integers(0, 1000))
def test_uniform_batches(setting: Setting, stream: list[str], seed: int) -> None:
    """Only drawable transitions, only sequences within an episode, and their content."""
    both, K = Both(setting), setting.K
    generator = torch.Generator().manual_seed(seed)
    sampler = UniformSampler(both.replay, generator, batch_size=6, sequence_batch_size=4, K=K, gamma=GAMMA)

    def check_batch() -> None:
        batch = sampler.sample({})
        allowed = both.positions(both.plain.drawable(1)).tolist()
        assert set(batch.transitions.positions.tolist()) <= set(allowed)
        assert len(batch.transitions.positions) == 6
        both.plain.check_transitions(batch.transitions, GAMMA)
        assert (batch.sequences is None) == (K == 0)
        starts = both.positions(both.plain.drawable(K, within_episode=True)).tolist()
        if batch.sequences is not None and starts:
            assert set(batch.sequences.positions.tolist()) <= set(starts)
            both.plain.check_sequences(batch.sequences, K, [[1.0] * (K + 1)] * 4)
        elif batch.sequences is not None:
            assert not batch.sequences.mask.any()

    for end in stream:
        both.observe()
        sampler.on_append()
        if both.due and both.plain.drawable(1):
            check_batch()
        both.act(end)
        if both.due and both.plain.drawable(1):  # nothing depends on whether the newest transition is there
            check_batch()
