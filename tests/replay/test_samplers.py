"""Prioritized sampling by hand and by frequencies, uniform sampling, and where sequences may start."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import PrioritizedSampler, RainbowBatch, ReplayBuffer, UniformSampler
from playvirtual.replay.samplers import draw_proportional
from tests.replay.storing import fill, picture, store

FRAME = np.zeros((1, 1, 1), np.uint8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_frequencies_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    drawn = draw_proportional(weights, 80_000, seeded())
    shares = torch.bincount(drawn, minlength=6) / 80_000
    torch.testing.assert_close(shares, weights / weights.sum(), atol=0.008, rtol=0)  # > 4 standard deviations


@given(st.lists(st.sampled_from([0.0, 1e-6, 1.0, 1e6]), min_size=1, max_size=50), st.integers(0, 1000))
def test_weight_zero_is_never_drawn(values: list[float], seed: int) -> None:
    weights = torch.tensor([*values, 1.0, 0.0])
    drawn = draw_proportional(weights, 64, seeded(seed))
    assert (weights[drawn] > 0).all()


def test_a_small_priority_among_many_large_ones_is_not_lost() -> None:
    """Beyond 2²⁴ a running sum in float32 leaves out every other 1; here all of them have their share."""
    weights = torch.cat([torch.tensor([2.0**24]), torch.ones(200_000)])
    left_out = torch.cat([torch.tensor([False]), weights.double().cumsum(0).float().diff() == 0])
    assert left_out.sum() > 90_000
    drawn = draw_proportional(weights, 1_000_000, seeded())
    share = float(left_out[drawn].float().mean())
    expected = float(left_out.sum() / weights.sum())
    assert abs(share - expected) < 0.1 * expected  # over 7 standard deviations


def prioritized(replay: ReplayBuffer, **changes: Any) -> PrioritizedSampler:
    settings = {"batch_size": 8, "K": 0, "n_step": 1, "gamma": 0.9, "alpha": 0.5, **changes}
    return PrioritizedSampler(replay, settings.pop("generator", seeded()), **settings)


def batch_at(sampler: PrioritizedSampler, positions: list[int]) -> RainbowBatch:
    """A batch of which only the positions matter."""
    batch = sampler.sample({"beta": torch.tensor(1.0)})
    return batch._replace(sequences=batch.sequences._replace(positions=torch.tensor(positions)))


def with_priorities(priorities: list[float], alpha: float, batch_size: int, seed: int) -> PrioritizedSampler:
    """A sampler of as many entries as there are priorities."""
    replay = ReplayBuffer(len(priorities) + 1, (1, 1, 1), 1, None)
    sampler = prioritized(replay, alpha=alpha, batch_size=batch_size)
    for _ in range(len(priorities) + 1):
        store(replay, FRAME, 0, 0.0, terminated=False)
    sampler.on_append()
    sampler.update_priorities(batch_at(sampler, [*range(len(priorities))]), torch.tensor(priorities))
    sampler.generator.manual_seed(seed)
    return sampler


@pytest.mark.parametrize(
    ("alpha", "shares"), [(0.0, [1 / 3, 1 / 3, 1 / 3]), (0.5, [1 / 7, 2 / 7, 4 / 7]), (1.0, [1 / 21, 4 / 21, 16 / 21])]
)
def test_priorities_are_raised_to_alpha(alpha: float, shares: list[float]) -> None:
    sampler = with_priorities([1.0, 4.0, 16.0], alpha, 70_000, seed=0)
    batch = sampler.sample({"beta": torch.tensor(0.4)})
    counts = torch.bincount(batch.sequences.positions, minlength=4)
    torch.testing.assert_close(counts / 70_000, torch.tensor([*shares, 0.0]), atol=0.01, rtol=0)
    first, last = (torch.bincount(half, minlength=4) for half in batch.sequences.positions.split(35_000))
    torch.testing.assert_close(first / 35_000, last / 35_000, atol=0.015, rtol=0)  # the whole batch is drawn alike


@pytest.mark.parametrize(
    ("beta", "weights"), [(0.0, [1.0, 1.0, 1.0]), (0.4, [1.0, 2**-0.4, 4**-0.4]), (1.0, [1.0, 0.5, 0.25])]
)
def test_importance_weights_by_hand(beta: float, weights: list[float]) -> None:
    """p^α = 1, 2, 4: the weights are (1/p^α)^β relative to the largest in the batch."""
    sampler = with_priorities([1.0, 4.0, 16.0], 0.5, 200, seed=1)
    batch = sampler.sample({"beta": torch.tensor(beta)})
    expected = torch.tensor(weights)[batch.sequences.positions]
    torch.testing.assert_close(batch.weights, expected, atol=1e-4, rtol=0)
    assert batch.weights.max() == 1


def test_weights_are_relative_to_the_largest_of_the_batch_not_of_the_buffer() -> None:
    """Without the entry of the smallest priority in the batch, the next one has weight 1."""
    sampler = with_priorities([1e-4, 4.0, 16.0], 0.5, 20, seed=0)
    batch = sampler.sample({"beta": torch.tensor(1.0)})
    assert set(batch.sequences.positions.tolist()) == {1, 2}
    torch.testing.assert_close(
        batch.weights, torch.tensor([0.0, 1.0, 0.5])[batch.sequences.positions], atol=1e-4, rtol=0
    )


def test_the_generator_alone_decides_what_is_drawn() -> None:
    sampler, replay = with_priorities([1.0] * 50, 0.5, 40, seed=3), fill([(60, False)], 90, 1, action_size=1)[0]
    for drawing in (sampler, UniformSampler(replay, seeded(3), batch_size=40, sequence_batch_size=40, K=3, gamma=0.9)):
        drawn = []
        for seed in (3, 3, 4):
            drawing.generator.manual_seed(seed)
            torch.manual_seed(len(drawn))
            batches = [drawing.positions(drawing.sample({"beta": torch.tensor(0.5)})) for _ in range(2)]
            drawn.append([positions.tolist() for batch in batches for positions in batch.values()])
            assert len({*map(tuple, drawn[-1])}) == len(drawn[-1])  # transitions, sequences, and the next batch's
        assert drawn[0] == drawn[1] != drawn[2]


def test_full_correction_makes_the_estimate_unbiased() -> None:
    """Σ w·x / Σ w over prioritized draws with β = 1 is the plain mean of x."""
    sampler = with_priorities([0.1, 1.0, 5.0, 10.0], 0.5, 100_000, seed=2)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    batch = sampler.sample({"beta": torch.tensor(1.0)})
    estimate = (batch.weights * x[batch.sequences.positions]).sum() / batch.weights.sum()
    assert float(estimate) == pytest.approx(2.5, abs=0.03)


def test_a_schedule_decides_how_far_returns_reach_and_how_they_are_discounted() -> None:
    """Rewards are 1, 2, 3, …: of two of them at γ = ½ the return from position t is (t + 1) + (t + 2) / 2."""
    replay = fill([(20, False)], 30, 1)[0]
    sampler = prioritized(replay, n_step=4, gamma=0.9)
    sampler.on_append()
    scheduled = {"n_step": torch.tensor(2.0), "discount": torch.tensor(0.5), "beta": torch.tensor(1.0)}
    batch = sampler.sample(scheduled)
    t = batch.sequences.positions
    assert len(t.unique()) > 3
    assert batch.returns.tolist() == (1.5 * t + 2.0).tolist()
    assert batch.discounts.tolist() == [0.25] * 8
    assert torch.equal(batch.next_observations, replay.observations(t + 2))
    plain = sampler.sample({"beta": torch.tensor(1.0)})
    assert torch.equal(plain.next_observations, replay.observations(plain.sequences.positions + 4))
    assert plain.discounts.tolist() == pytest.approx([0.9**4] * 8)


def test_a_prioritized_sampler_refuses_an_update_without_priorities() -> None:
    sampler = with_priorities([1.0, 1.0], 0.5, 2, seed=0)
    with pytest.raises(ValueError, match="priorities: None is not allowed"):
        sampler.update_priorities(batch_at(sampler, [0, 1]), None)


@pytest.mark.parametrize(("K", "n_step", "reads"), [(0, 1, False), (3, 10, False), (3, 3, True), (5, 2, True)])
def test_whether_a_batch_reads_the_newest_transition(K: int, n_step: int, reads: bool) -> None:
    """Batches before and after the newest frame's transition is added differ only where the sampler says so."""
    replay = ReplayBuffer(40, (1, 1, 1), 1, None)
    for number in range(14):
        store(replay, picture(number), number, 1.0, terminated=False)
    replay.add_obs(picture(14))
    sampler = prioritized(replay, K=K, n_step=n_step, batch_size=500)
    sampler.on_append()
    before = sampler.sample({"beta": torch.tensor(1.0)})
    replay.add_transition(14, 7.0, terminated=True)
    sampler.generator.manual_seed(0)
    after = sampler.sample({"beta": torch.tensor(1.0)})
    assert sampler.reads_newest_transition == reads
    fields = [(*batch.sequences, *batch[1:5]) for batch in (before, after)]  # `joined` are views of them
    same = [torch.equal(x, y) for x, y in zip(*fields, strict=True)]
    assert all(same) == (not reads)


def some_batch(K: int = 2, *, compiled: bool = False) -> RainbowBatch:
    """A batch of 8 sequences of K steps."""
    sampler = prioritized(fill([(9, True), (14, False)], 40, 2)[0], K=K, n_step=3)
    sampler.on_append()
    if compiled:
        sampler.compile()
    return sampler.sample({"beta": torch.tensor(1.0)})


@pytest.mark.parametrize("K", [0, 3])
def test_a_batchs_images_are_its_observations_without_a_copy(K: int) -> None:
    batch = some_batch(K)
    images = batch.images()
    assert images is not None
    assert torch.equal(images, torch.cat([batch.sequences.observations.flatten(0, 1), batch.next_observations]))
    assert batch.sequences.observations.data_ptr() == images.data_ptr()
    assert batch.next_observations.data_ptr() == images[8 * (K + 1) :].data_ptr()


def other_observations(batch: RainbowBatch) -> list[RainbowBatch]:
    """The batch with either kind of its observations one brighter."""
    recorded = batch.sequences._replace(observations=batch.sequences.observations + 1)
    return [batch._replace(sequences=recorded), batch._replace(next_observations=batch.next_observations + 1)]


def test_a_batch_whose_observations_were_replaced_has_no_images() -> None:
    batch = some_batch()
    assert all(changed.images() is None for changed in other_observations(batch))
    assert RainbowBatch(*batch[:5]).images() is None
    assert batch._replace(weights=batch.weights / 2).images() is not None


def brightness(batch: RainbowBatch) -> torch.Tensor:
    """Of all its observations, in one piece or not; a million more where they are in one piece."""
    images = batch.images()
    if images is None:
        return batch.sequences.observations.sum() + batch.next_observations.sum()
    return images.sum() + 10**6


def test_compiled_code_has_the_images_of_compiled_batches_and_sees_that_observations_were_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled for the one or for the other first, as losses and samplers are compiled apart from each other."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    torch._dynamo.reset()
    plain, batch = some_batch(), some_batch(compiled=True)
    assert torch.equal(batch.next_observations, plain.next_observations)
    assert torch.equal(batch.sequences.observations, plain.sequences.observations)
    batches = [batch, *other_observations(batch)]
    expected = [int(brightness(each)) for each in batches]
    assert expected[0] > 10**6 > expected[1]
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        torch._dynamo.reset()
        compiled = torch.compile(brightness)
        assert [int(compiled(batches[i])) for i in order] == [expected[i] for i in order]
    torch._dynamo.reset()


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(["continues", "terminated", "truncated"]), st.booleans()), max_size=60),
    st.integers(2, 25),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.booleans(),
)
def test_priorities_entry_by_entry(
    events: list[tuple[str, bool]], capacity: int, stack: int, span: int, every: int, largest_first: bool
) -> None:
    """However many entries were added since the last call, and whatever priorities were updated in between.

    The updates are 2, 0.5 and larger ones in turns, so that the last priority is not always the largest.
    """
    replay = ReplayBuffer(capacity, (1, 1, 1), stack, None)
    sampler = prioritized(replay, n_step=span, alpha=1.0, largest_first=largest_first)
    expected, seen, new = [0.0] * capacity, 0, 1.0
    for step, (ending, updates) in enumerate(events):
        last_frame = FRAME if ending == "truncated" else None
        store(replay, FRAME, 0, 0.0, terminated=ending == "terminated", last_frame=last_frame)
        if step % every:
            continue
        sampler.on_append()
        for entry in range(seen, replay.num_added):
            for overwritten in range(stack) if entry >= capacity else ():
                expected[(entry + overwritten) % capacity] = 0.0
            if entry >= span:
                expected[(entry - span) % capacity] = new * float(replay.has_action[(entry - span) % capacity])
        seen = replay.num_added
        assert sampler.priorities.tolist() == expected
        starts = [position for position, priority in enumerate(expected) if priority > 0]
        if updates and starts:
            priority = (2.0, 0.5, 2.0 + step)[step % 3]
            expected[starts[-1]] = priority
            new = max(new, priority) if largest_first else 1.0
            sampler.update_priorities(batch_at(sampler, starts[-1:]), torch.tensor([priority]))


def test_a_new_entry_has_the_largest_priority_so_far_to_the_power_of_alpha() -> None:
    """It stays the largest after the entry that had it got a smaller one, and begins with 1."""
    replay = ReplayBuffer(20, (1, 1, 1), 1, None)
    sampler = prioritized(replay, alpha=0.5, largest_first=True)
    news = []
    for priority in (0.25, 9.0, 4.0, 16.0):
        store(replay, FRAME, 0, 0.0, terminated=False)
        store(replay, FRAME, 0, 0.0, terminated=False)
        sampler.on_append()
        newest = replay.num_added - 2
        news.append(float(sampler.priorities[newest]))
        sampler.update_priorities(batch_at(sampler, [newest]), torch.tensor([priority]))
    assert news == [1.0, 1.0, 3.0, 3.0]
    assert sampler.state_dict()["largest"] == 4.0


@pytest.mark.parametrize("largest_first", [False, True])
def test_a_loaded_state_continues_with_the_same_batches(largest_first: bool) -> None:
    replay, _ = fill([(9, True), (6, False)], 30, 2)
    one, two = (prioritized(replay, largest_first=largest_first) for _ in range(2))
    one.on_append()
    one.update_priorities(batch_at(one, [0, 3]), torch.tensor([9.0, 0.1]))
    assert one.state_dict()["priorities"].dtype == torch.float32  # as in the checkpoints that there are
    two.load_state_dict(one.state_dict())
    for _ in range(2):  # the first of them can be drawn then
        store(replay, FRAME, 0, 0.0, terminated=False)
    batches = []
    for sampler in (one, two):
        sampler.on_append()
        sampler.generator.manual_seed(5)
        batches.append(sampler.sample({"beta": torch.tensor(0.5)}))
    assert torch.equal(one.priorities, two.priorities)
    assert torch.equal(batches[0].sequences.positions, batches[1].sequences.positions)
    assert torch.equal(batches[0].weights, batches[1].weights)


def uniform(replay: ReplayBuffer, K: int, seed: int = 0) -> UniformSampler:
    return UniformSampler(replay, seeded(seed), batch_size=4000, sequence_batch_size=2000, K=K, gamma=0.9)


def test_uniform_sampling_draws_every_transition_and_every_sequence() -> None:
    episodes = [(5, False), (4, True), (2, False), (7, False)]
    replay, history = fill(episodes, 400, 3, action_size=1)
    batch = uniform(replay, K=3).sample({})
    steps = {i for i, entry in enumerate(history[:-1]) if entry.has_action}
    assert set(batch.transitions.positions.tolist()) == steps
    counts = torch.bincount(batch.transitions.positions, minlength=len(history))[sorted(steps)]
    assert (counts / 4000 - 1 / len(steps)).abs().max() < 0.02

    # 5 steps and a last frame: 3 sequences; 4 steps: 1; 2 steps and a last frame: none; 7 and a last frame: 5.
    starts = {i for i in range(len(history) - 3) if history[i].episode == history[i + 3].episode}
    assert len(starts) == 9
    assert batch.sequences is not None
    assert set(batch.sequences.positions.tolist()) == starts
    assert batch.sequences.mask.tolist() == [[1.0] * 4] * 2000


def test_uniform_sampling_masks_sequences_while_no_episode_is_long_enough() -> None:
    replay, _ = fill([(3, True), (3, True)], 40, 1, action_size=1)
    batch = uniform(replay, K=3).sample({})
    assert batch.sequences is not None
    assert not batch.sequences.mask.any()


def test_a_uniform_batch_tells_its_positions_and_has_sequences_only_with_a_horizon() -> None:
    replay, _ = fill([(8, False)], 40, 1, action_size=1)
    for K, kinds in [(0, ["transitions"]), (2, ["transitions", "sequences"])]:
        sampler = uniform(replay, K)
        batch = sampler.sample({})
        assert (batch.sequences is None) == (K == 0)
        assert list(sampler.positions(batch)) == kinds
        sampler.update_priorities(batch, None)
        assert sampler.state_dict() == {}


def test_compiled_uniform_sampling_follows_a_buffer_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once for the first batch, which is all that a CUDA graph captures, it reads what a plain sampler reads.

    The first batch comes before any episode is long enough for a sequence; the ring buffer is overwritten twice.
    """
    replay = ReplayBuffer(50, (1, 1, 1), 3, 1)
    plain, compiled = (uniform(replay, K=3, seed=1) for _ in range(2))
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled.compile()
    seen_sequences, number = [], 0
    for length in (3, 2, 5, 30, 4, 9, 12, 30, 25, 3, 7):
        for step in range(length):
            number += 1
            ends, terminated = step == length - 1, length % 2 == 1
            last_frame = picture(number + 1) if ends and not terminated else None
            store(replay, picture(number), [number], number, terminated=ends and terminated, last_frame=last_frame)
        with torch._dynamo.config.patch(error_on_recompile=bool(seen_sequences)):
            ours, theirs = compiled.sample({}), plain.sample({})
        assert ours.sequences is not None
        assert theirs.sequences is not None
        for part, other in ((ours.transitions, theirs.transitions), (ours.sequences, theirs.sequences)):
            assert all(torch.equal(a, b) for a, b in zip(part, other, strict=True))
        seen_sequences.append(bool(ours.sequences.mask.all()))
    assert seen_sequences[:2] == [False, False]
    assert all(seen_sequences[2:])
    assert replay.num_added > 2 * replay.capacity
    torch._dynamo.reset()
