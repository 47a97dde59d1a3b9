"""Laws that hold for the vector envs of every family."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from playvirtual.envs import make
from playvirtual.envs.families.gl import choose
from playvirtual.errors import InputError

TASKS = [
    "atari/breakout",
    "minatar/asterix",
    "minatar/seaquest",
    "toy/catch",
    "toy/reach",
    "gym/CartPole-v1",
    "dmc/cartpole-swingup",
]
STEPS = 40


@pytest.fixture(params=TASKS)
def build(request, settings):
    """A function that makes environments of one task; its color frames are small to be fast."""
    task = request.param
    if task.startswith("dmc/"):
        pytest.importorskip("dm_control")
        try:
            choose()
        except InputError as error:
            pytest.skip(str(error))
    if task == "gym/CartPole-v1":
        pytest.importorskip("pygame", reason="Gymnasium draws CartPole with pygame")
    steps = 6 if task.startswith("dmc/") else STEPS
    config = settings(image_size=84 if task.startswith("atari/") else 32, action_repeat=2)
    made = []

    def one(num_envs):
        made.append(make(task, num_envs, training=True, config=config))
        return made[-1]

    one.steps = steps
    yield one
    for env in made:
        env.close()


def actions(env, rng):
    """One random action per environment."""
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=env.num_envs)
    return rng.uniform(-1, 1, (env.num_envs, *space.shape)).astype(np.float32)


def test_shapes_and_types(build):
    env = build(3)
    first = env.reset([2, 0], [7, 8])
    assert first.shape == (2, *env.frame_shape)
    assert first.dtype == np.uint8
    assert first.flags.c_contiguous
    step = env.step(actions(env, np.random.default_rng(0)))
    assert step.frames.shape == (3, *env.frame_shape)
    assert step.frames.dtype == np.uint8
    assert step.frames.flags.c_contiguous
    assert step.rewards.shape == step.terminated.shape == step.done.shape == (3,)
    assert step.rewards.dtype == np.float32
    assert step.terminated.dtype == step.done.dtype == np.bool_
    assert step.done.tolist() == [False, True, False]  # the environment that was never reset waits
    rendered = env.render(0)
    assert rendered.ndim == 3
    assert rendered.shape[2] == 3
    assert rendered.dtype == np.uint8
    assert isinstance(env.action_space, spaces.Discrete | spaces.Box)


def test_seeds_alone_decide_whatever_the_index_and_its_past(build):
    many, one = build(3), build(1)
    rng = np.random.default_rng(1)
    many.reset([0, 1, 2], [90, 91, 92])
    for _ in range(5):
        many.step(actions(many, rng))
    assert np.array_equal(many.reset([2, 1], [4, 3])[1], one.reset([0], [3])[0])
    for _ in range(build.steps):
        chosen = actions(many, rng)
        here, alone = many.step(chosen), one.step(chosen[1:2])
        for ours, theirs in zip(here, alone, strict=True):
            assert np.array_equal(ours[1], theirs[0])


def test_chosen_environments_are_stepped_alone_and_in_the_order_of_their_actions(build):
    some, alone = build(3), build(3)
    rng = np.random.default_rng(4)
    for env in (some, alone):
        env.reset([0, 1, 2], [11, 12, 13])
    for _ in range(5):  # the first frames of some games do not depend on the seed
        chosen = actions(some, rng)[:1]
        for env in (some, alone):
            env.step(chosen, [2])
    for _ in range(min(build.steps, 8)):
        chosen = actions(some, rng)[:2]
        step, one = some.step(chosen, [2, 0]), alone.step(chosen[:1], [2])
        assert len(step.frames) == len(step.rewards) == len(step.terminated) == len(step.done) == 2
        for ours, theirs in zip(step, one, strict=True):
            assert np.array_equal(ours[0], theirs[0])
    fresh = build(3)
    fresh.reset([1], [12])
    chosen = actions(some, rng)
    for left, played in zip(some.step(chosen[1:2], [1]), fresh.step(chosen), strict=True):
        assert np.array_equal(left[0], played[1])  # environment 1 has not moved meanwhile


def test_other_seeds_give_other_episodes(build):
    env = build(1)
    starts = {env.reset([0], [seed]).tobytes() for seed in range(12)}
    if len(starts) == 1:  # same first frame (Breakout's no-ops, MinAtar): play on
        rng = np.random.default_rng(2)
        chosen = [actions(env, rng) for _ in range(30)]
        for seed in range(12):
            env.reset([0], [seed])
            starts.add(b"".join(env.step(action).frames.tobytes() for action in chosen))
    assert len(starts) > 2


def test_what_a_step_returned_is_kept(build):
    env = build(1)
    env.reset([0], [0])
    rng = np.random.default_rng(3)
    step = env.step(actions(env, rng))
    before = [array.copy() for array in step]
    for _ in range(3):
        env.step(actions(env, rng))
    env.reset([0], [1])
    assert all(np.array_equal(was, now) for was, now in zip(before, step, strict=True))
