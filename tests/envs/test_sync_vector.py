"""A vector env of single environments beside a loop over one of them: repeats, limits, ends, resets in any order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.envs.vector import EnvStep, SyncVectorEnv


class Ending(NamedTuple):
    """An episode's last frame, and whether it is terminated there."""

    time: int
    terminated: bool


class Counting:
    """Shows its seed, its time and its last action; the reward of frame t is 2^t + action, and endings are by seed."""

    frame_shape = (1, 1, 3)
    action_space = spaces.Discrete(5)

    def __init__(self, endings: list[Ending]) -> None:
        self.endings, self.drawn = endings, 0
        self.seed = self.time = self.action = 0

    def reset(self, seed: int) -> None:
        self.seed, self.time, self.action = seed, 0, 0

    def step(self, action: Any) -> EnvStep:
        assert np.shape(action) == ()
        self.time += 1
        self.action = int(action)
        ending = self.endings[self.seed]
        assert self.time <= ending.time  # never stepped beyond its end
        done = self.time == ending.time
        return EnvStep(2.0**self.time + self.action, done and ending.terminated, done)

    def frame(self) -> Any:
        self.drawn += 1
        return np.array([[[self.seed, self.time, self.action]]], np.uint8)

    def render(self) -> Any:
        return np.full((2, 2, 3), self.seed, np.uint8)

    def close(self) -> None:
        pass


class Plain:
    """What one environment should say."""

    def __init__(self, endings: list[Ending], repeat: int, limit: int) -> None:
        self.endings, self.repeat, self.limit = endings, repeat, limit
        self.frame, self.terminated, self.done = [0, 0, 0], False, True
        self.draws = 0

    def reset(self, seed: int) -> None:
        self.frame, self.terminated, self.done = [seed, 0, 0], False, False
        self.draws += 1

    def step(self, action: int) -> float:
        if self.done:
            return 0.0
        seed, time, _ = self.frame
        total = 0.0
        for _ in range(self.repeat):
            time += 1
            total += 2**time + action
            if time == self.endings[seed].time:
                self.terminated, self.done = self.endings[seed].terminated, True
            if self.limit and time == self.limit:
                self.done = True
            if self.done:
                break
        self.frame = [seed, time, action]
        self.draws += 1
        return total


ENDINGS = st.lists(st.builds(Ending, st.integers(1, 8), st.booleans()), min_size=4, max_size=4)
# Each moment: which of three environments are reset, with which seeds, and then all of their actions.
RESETS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=3, unique_by=lambda pair: pair[0])
MOMENTS = st.lists(st.tuples(RESETS, st.tuples(*[st.integers(0, 4)] * 3)), min_size=1, max_size=12)


@settings(max_examples=150)
@given(ENDINGS, MOMENTS, st.integers(1, 4), st.sampled_from([0, 1, 3, 4, 6]))
def test_every_step_is_that_of_a_plain_loop(endings: list[Ending], moments: Any, repeat: int, limit: int) -> None:
    singles = [Counting(endings) for _ in range(3)]
    env = SyncVectorEnv(singles, action_repeat=repeat, max_frames=limit)
    plain = [Plain(endings, repeat, limit) for _ in range(3)]
    kept = []
    for resets, actions in moments:
        frames = env.reset([index for index, _ in resets], [seed for _, seed in resets])
        for (index, seed), frame in zip(resets, frames, strict=True):
            plain[index].reset(seed)
            assert frame.flatten().tolist() == [seed, 0, 0]
        step = env.step(np.array(actions))
        rewards = [one.step(action) for one, action in zip(plain, actions, strict=True)]
        assert step.rewards.tolist() == rewards
        assert step.frames[:, 0, 0].tolist() == [one.frame for one in plain]
        assert step.terminated.tolist() == [one.terminated for one in plain]
        assert step.done.tolist() == [one.done for one in plain]
        assert [single.drawn for single in singles] == [one.draws for one in plain]
        kept.append((step, [array.copy() for array in step]))
    assert all(np.array_equal(now, then) for step, copies in kept for now, then in zip(step, copies, strict=True))
