"""The toys, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from playvirtual.envs import make
from playvirtual.envs.families.toy import COLUMNS, ROWS


@pytest.fixture
def catch(settings):
    return make("toy/catch", 1, training=True, config=settings(action_repeat=1))


@pytest.fixture
def reach(settings):
    config = settings(action_repeat=1, image_size=40, grayscale=False)
    return make("toy/reach", 1, training=True, config=config)


def play_catch(catch, policy):
    """The rewards of one episode in which `policy` sees the columns of ball and paddle."""
    frame, rewards = catch.reset([0], [policy.seed])[0, 0], []
    ball, paddle = frame[0].argmax(), frame[-1].argmax()
    while True:
        step = catch.step(np.array([policy(int(ball), int(paddle))]))
        rewards.append(float(step.rewards[0]))
        if step.done[0]:
            assert step.terminated[0]
            return rewards
        paddle = step.frames[0, 0, -1].argmax()


class Follow:
    """Goes under the ball, or away from it."""

    def __init__(self, seed, away=False):
        self.seed, self.away = seed, away

    def __call__(self, ball, paddle):
        if self.away:
            return 2 if ball < COLUMNS // 2 else 0
        return 1 + int(np.sign(ball - paddle))


@pytest.mark.parametrize("seed", range(20))
def test_catch_pays_1_when_caught_and_minus_1_when_missed(catch, seed):
    assert play_catch(catch, Follow(seed)) == [0.0] * (ROWS - 2) + [1.0]
    assert play_catch(catch, Follow(seed, away=True)) == [0.0] * (ROWS - 2) + [-1.0]


def test_catch_frames(catch):
    frame = catch.reset([0], [1])[0, 0]
    column = int(frame[0].argmax())
    assert frame.shape == (10, 10)
    assert frame.sum() == 2 * 255
    assert frame[9, 5] == 255
    frame = catch.step(np.array([0])).frames[0, 0]
    assert frame[1, column] == 255
    assert frame[9, 4] == 255
    frame = catch.step(np.array([2])).frames[0, 0]
    assert frame[2, column] == 255
    assert frame[9, 5] == 255


def test_the_paddle_stops_at_the_wall(catch):
    catch.reset([0], [0])
    for _ in range(8):
        frame = catch.step(np.array([0])).frames[0, 0]
    assert frame[9, 0] == 255


@pytest.mark.parametrize(("last", "reward"), [(2, 1.0), (1, -1.0), (0, -1.0)])
def test_the_last_move_of_the_paddle_counts(catch, last, reward):
    """The paddle waits one column left of the ball, which lands with the ninth action."""
    seed = next(seed for seed in range(100) if catch.reset([0], [seed])[0, 0, 0].argmax() == 4)
    catch.reset([0], [seed])
    for action in (0, 0, 1, 1, 1, 1, 1, 1):  # from column 5 to column 3
        assert catch.step(np.array([action])).rewards[0] == 0
    assert catch.step(np.array([last])).rewards[0] == reward


def test_every_column_is_drawn(catch):
    assert {int(catch.reset([0], [seed])[0, 0, 0].argmax()) for seed in range(200)} == set(range(COLUMNS))


def test_a_frame_limit_truncates_and_the_environment_stays_as_it_is(settings):
    catch = make("toy/catch", 2, training=True, config=settings(action_repeat=2, max_episode_frames=5))
    catch.reset([0, 1], [0, 1])
    done = [catch.step(np.array([1, 1])).done.tolist() for _ in range(2)]
    last = catch.step(np.array([1, 1]))
    assert done == [[False, False]] * 2
    assert last.done.all()
    assert not last.terminated.any()
    assert (last.frames[:, 0, 5].max(axis=1) == 255).all()  # the third action was cut after its first frame
    catch.reset([1], [1])
    after = catch.step(np.array([1, 1]))
    assert np.array_equal(after.frames[0], last.frames[0])
    assert after.rewards[0] == 0
    assert after.done.tolist() == [True, False]


def disc_centre(plane):
    """(x, y) in [−1, 1]², y up, of a plane's bright pixels."""
    rows, columns = np.nonzero(plane)
    size = len(plane)
    return np.array([(columns.mean() + 0.5) * 2 / size - 1, 1 - (rows.mean() + 0.5) * 2 / size])


def reach_return(reach, seed, straight):
    """One episode, steered from the pixels straight to the target or at random."""
    rng = np.random.default_rng(seed)
    frame, total, steps = reach.reset([0], [seed])[0], 0.0, 0
    target = disc_centre(frame[0] > frame[1].astype(int) + 60)
    while True:
        agent = disc_centre(frame[1] > 150)
        action = np.clip((target - agent) / 0.1, -1, 1) if straight else rng.uniform(-1, 1, 2)
        step = reach.step(action[None].astype(np.float32))
        frame, total, steps = step.frames[0], total + float(step.rewards[0]), steps + 1
        assert 0 < step.rewards[0] <= 1
        assert not step.terminated[0]
        if step.done[0]:
            return total, steps


def test_going_straight_to_the_target_pays_more_than_chance(reach):
    straight = [reach_return(reach, seed, straight=True) for seed in range(8)]
    chance = [reach_return(reach, seed, straight=False) for seed in range(8)]
    assert {steps for _, steps in straight + chance} == {50}
    assert np.mean([total for total, _ in straight]) > 30
    assert np.mean([total for total, _ in chance]) < 12


@pytest.mark.parametrize("size", [24, 84])
def test_reach_is_drawn_at_any_size(settings, size):
    for grayscale, channels in ((False, 3), (True, 1)):
        config = settings(image_size=size, grayscale=grayscale)
        reach = make("toy/reach", 1, training=True, config=config)
        assert reach.reset([0], [0]).shape == (1, channels, size, size)


def test_reach_by_hand(reach):
    """The seed places agent and target; a frame moves 0.1 times the action, at most to the wall, and pays exp(−2 d)."""
    for seed in range(3):
        random = np.random.default_rng(seed)
        agent, target = random.uniform(-0.9, 0.9, 2), 0.5 * random.choice([-1.0, 1.0], 2)
        reach.reset([0], [seed])
        for time in range(50):
            action = np.array([3.0, -0.5] if time < 30 else [-0.25, 1.0], np.float32)  # 3 is clipped to 1
            agent = np.clip(agent + 0.1 * np.clip(action, -1, 1), -1, 1)
            step = reach.step(action[None])
            assert step.rewards[0] == pytest.approx(np.exp(-2 * np.hypot(*(agent - target))), rel=1e-5)
            assert step.done[0] == (time == 49)
            assert not step.terminated[0]
