"""Evaluation plays every episode that it starts, in any number of envs, with the same result."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from playvirtual import envs
from playvirtual.config.build import build
from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames, VectorEnv
from playvirtual.envs.vector import EnvStep, SyncVectorEnv
from playvirtual.method import BoxActions, DiscreteActions
from playvirtual.training import evaluation
from playvirtual.training.evaluation import (
    Evaluator,
    Policy,
    WatchedStep,
    evaluate,
    evaluation_policy,
    evaluation_seeds,
    play_episodes,
)
from playvirtual.training.training_env import TrainingEnv
from tests.training.scripted_env import DISCRETE, Episode, frame_of, scripted_tasks

CONFIG = build("toy/catch").environment


def chase(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Perfect play, read off the pixels: move the paddle towards the ball's column."""
    ball = observations[:, -1, :-1].max(1).argmax(1)
    paddle = observations[:, -1, -1].argmax(1)
    return np.sign(ball - paddle).astype(np.int64) + 1


def score(policy: object, num_envs: int, seeds: list[int]) -> list[float]:
    env = envs.make("toy/catch", num_envs, training=False, config=CONFIG)
    return play_episodes(policy, env, CONFIG, seeds)  # type: ignore[arg-type]


def test_perfect_play_scores_one() -> None:
    assert score(chase, 8, list(range(50))) == [1.0] * 50


@pytest.mark.parametrize("num_envs", [1, 3, 20])
def test_the_number_of_envs_changes_nothing(num_envs: int) -> None:
    """Always standing still catches exactly the balls that fall onto the start column."""

    def still(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.ones(len(observations), np.int64)

    seeds = list(range(20))
    assert score(still, num_envs, seeds) == score(still, 5, seeds)
    assert -1.0 in score(still, num_envs, seeds)


def test_only_games_that_are_still_played_are_looked_at_and_moved() -> None:
    """Balls of toy/catch fall for equally long, so one env plays two episodes after the others have had their last."""
    env = envs.make("toy/catch", 3, training=False, config=CONFIG)
    looked, moved = [], []

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        looked.append(len(observations))
        return chase(observations)

    def spy(actions: npt.NDArray[np.generic], indices: object = None) -> object:
        moved.append(indices)
        return step(actions, indices)  # type: ignore[arg-type]

    step, env.step = env.step, spy  # type: ignore[method-assign, assignment]
    assert play_episodes(policy, env, CONFIG, list(range(7))) == [1.0] * 7
    length = len(looked) // 3
    assert looked == [3] * length + [3] * length + [1] * length
    assert moved[0] == [0, 1, 2]
    assert moved[-1] == [0]


@pytest.mark.slow
def test_long_episodes_count_as_well_as_short_ones() -> None:
    """Atari games of different length: all finish, whatever the number of envs."""
    config = build("atari/breakout", max_episode_frames=2_000).environment
    seeds = evaluation_seeds(seed=1, step=0, episodes=5)
    results = []
    for num_envs in (2, 5):
        env = envs.make("atari/breakout", num_envs, training=False, config=config)
        results.append(play_episodes(lambda o: (o[:, -1].sum((1, 2)) % 4).astype(np.int64), env, config, seeds))
        env.close()
    assert results[0] == results[1]
    assert len(results[0]) == 5


def test_seeds_are_distinct_and_reproducible() -> None:
    seeds = evaluation_seeds(3, 1000, 100)
    assert len(set(seeds)) == 100
    assert seeds == evaluation_seeds(3, 1000, 100)
    assert not set(seeds) & set(evaluation_seeds(4, 1000, 100))


def test_watched_steps_own_their_arrays() -> None:
    config, steps = build("toy/reach").environment, []
    env = envs.make("toy/reach", 2, training=False, config=config)
    random = np.random.default_rng(0)

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return random.uniform(-1, 1, (len(observations), 2)).astype(np.float32)

    play_episodes(policy, env, config, [1, 2], steps.append)
    assert len(steps) > 2
    assert len({step.action.tobytes() for step in steps}) == len(steps)
    assert len({step.observation.tobytes() for step in steps}) > 1


class Story:
    """An episode of 1 to 5 steps that its seed decides; a frame tells seed and time, a reward seed and action."""

    frame_shape = (1, 2, 2)

    def __init__(self) -> None:
        self.action_space: ActionSpace = spaces.Discrete(10)

    def reset(self, seed: int) -> None:
        self._seed, self._time = seed, 0

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        self._time += 1
        done = self._time == length(self._seed)
        # A lost life in the middle of an episode is terminated and not done.
        return EnvStep(reward(self._seed, int(action)), done or self._time == 2, done)

    def frame(self) -> Frames:
        return np.full(self.frame_shape, shown(self._seed, self._time), np.uint8)

    def render(self) -> Frames:
        return np.zeros((2, 2, 3), np.uint8)

    closed = 0  # of all instances

    def close(self) -> None:
        Story.closed += 1


def length(seed: int) -> int:
    return 1 + seed * 7 % 5


def reward(seed: int, action: int) -> float:
    return 100.0 * action - seed  # far beyond any clipping


def shown(seed: int, time: int) -> int:
    return (10 * seed + time) % 256


def choose(stack: list[int]) -> int:
    """An action that depends on every frame of an observation."""
    return sum((i + 1) * frame for i, frame in enumerate(stack)) % 10


def told(seed: int, depth: int, fill: str) -> list[tuple[list[int], int, float, bool]]:
    """An episode by itself: observation, action, reward and whether it was the last step."""
    frames = [shown(seed, 0)] * depth if fill == "repeat" else [0] * (depth - 1) + [shown(seed, 0)]
    steps = []
    for time in range(1, length(seed) + 1):
        action = choose(frames[-depth:])
        steps.append((frames[-depth:], action, reward(seed, action), time == length(seed)))
        frames.append(shown(seed, time))
    return steps


@pytest.mark.parametrize("fill", ["zeros", "repeat"])
@pytest.mark.parametrize(("num_envs", "episodes"), [(1, 6), (3, 12), (5, 5), (4, 2)])
def test_each_episode_is_what_it_is_by_itself(num_envs: int, episodes: int, fill: str) -> None:
    seeds, depth = [3 + 2 * i for i in range(episodes)], 3
    config = replace(CONFIG, frame_stack=depth, stack_fill=fill)
    env = SyncVectorEnv([Story() for _ in range(num_envs)], action_repeat=1, max_frames=0)
    asked: list[list[int]] = []
    watched: list[WatchedStep] = []

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        stacks = [observation[:, 0, 0].tolist() for observation in observations]
        asked.extend(stacks)
        return np.array([choose(stack) for stack in stacks])

    returns = play_episodes(policy, env, config, seeds, watched.append)
    stories = {seed: told(seed, depth, fill) for seed in seeds}
    assert returns == [sum(step[2] for step in stories[seed]) for seed in seeds]
    expected = [stack for seed in seeds for stack, *_ in stories[seed]]
    assert sorted(asked) == sorted(expected)  # every step of every episode once, and of no env that waits
    first = [(s.observation[:, 0, 0].tolist(), int(s.action), s.reward, s.done) for s in watched]
    played = [seed for seed in seeds if stories[seed][0] in first]  # by the first env
    assert played[0] == seeds[0]
    assert first == [step for seed in played for step in stories[seed]]
    assert (len(played) == episodes) == (num_envs == 1)


def test_an_evaluation_has_the_episodes_that_it_is_asked_for() -> None:
    """Whatever the number of envs; its seeds depend on the run's seed and on the step."""
    config = build("toy/catch", eval_envs=4)

    def still(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        largest.append(len(observations))
        return np.ones(len(observations), np.int64)

    found = {}
    for episodes in (3, 4, 30):
        largest: list[int] = []
        found[episodes] = evaluate(still, config, episodes=episodes, seed=1, step=50)
        assert len(found[episodes]) == episodes
        assert max(largest) == min(4, episodes)
    assert found[4][:3] == found[3]
    others = [evaluate(still, config, episodes=30, seed=seed, step=step) for seed, step in ((1, 51), (2, 50))]
    assert found[30] not in others


def test_environments_are_told_whether_it_is_training_and_closed_after_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Atari a lost life is terminated in training alone."""
    asked: list[tuple[str, int, bool]] = []

    def make(name: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> SyncVectorEnv:
        asked.append((name, num_envs, training))
        return SyncVectorEnv([Story() for _ in range(num_envs)], action_repeat=1, max_frames=0)

    family = envs.registry.EnvFamily(tasks=("one",), make_vector=make, actions="discrete")
    monkeypatch.setitem(envs.registry.FAMILIES, "story", family)
    config, before = build("story/one", eval_envs=3), Story.closed
    evaluate(lambda o: np.zeros(len(o), np.int64), config, episodes=2, seed=1)
    assert Story.closed - before == 2
    with pytest.raises(ZeroDivisionError):  # as an interrupt in the middle of an evaluation does
        evaluate(lambda o: np.zeros(len(o) // 0, np.int64), config, episodes=3, seed=1)
    assert Story.closed - before == 5
    TrainingEnv(config).close()
    assert asked == [("one", 2, False), ("one", 3, False), ("one", 1, True)]


def test_seeds_of_evaluation_are_not_those_of_training() -> None:
    with closing(TrainingEnv(build("toy/catch", seed=3))) as env:
        assert not set(evaluation_seeds(3, 0, 100)) & {env.episode_seed(episode) for episode in range(100)}
    assert not set(evaluation_seeds(3, 1000, 100)) & set(evaluation_seeds(3, 2000, 100))
    assert all(0 <= seed < 2**31 for seed in evaluation_seeds(3, 0, 100))


class Still:
    """Stands in for a policy whose action is always 1."""

    def __init__(self, space: object) -> None:
        self.agent = SimpleNamespace(action_space=space)

    def __call__(self, observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.ones(len(observations), np.int64)


@pytest.mark.parametrize(("epsilon", "shares"), [(0.0, [0, 1, 0, 0]), (0.4, [0.1, 0.7, 0.1, 0.1]), (1.0, [0.25] * 4)])
def test_the_chance_of_a_random_action_in_evaluation(epsilon: float, shares: list[float]) -> None:
    """ε is the chance that a uniform action replaces the policy's, which may be the same again."""
    config = build("toy/catch", eval_epsilon=epsilon)
    seen = np.zeros((20_000, 1, 1, 1), np.uint8)
    policy = Still(DiscreteActions(4))
    acts = [evaluation_policy(policy, config, step)(seen) for step in (100, 100, 200)]  # type: ignore[arg-type]
    for actions in acts:
        np.testing.assert_allclose(np.bincount(actions, minlength=4) / len(seen), shares, atol=0.015)
    assert np.array_equal(acts[0], acts[1])
    assert np.array_equal(acts[0], acts[2]) == (epsilon == 0)


def test_continuous_actions_are_evaluated_as_they_are() -> None:
    config = build("toy/reach", eval_epsilon=1.0)
    policy = evaluation_policy(Still(BoxActions((-1.0,), (1.0,))), config, 0)  # type: ignore[arg-type]
    assert policy(np.zeros((50, 1, 1, 1), np.uint8)).tolist() == [1] * 50


@pytest.mark.parametrize("fill", ["zeros", "repeat"])
def test_what_an_evaluated_policy_sees(fill: str) -> None:
    """Stacks that begin anew with every episode, however many envs still play; lost lives change nothing."""
    with scripted_tasks() as made:
        options = {"frame_stack": 3, "stack_fill": fill, "eval_envs": 2, "action_repeat": 1}
        config = build("scripted/discrete", **{**DISCRETE, **options})
        seen: list[npt.NDArray[np.uint8]] = []

        def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
            seen.extend(observations.copy())
            return np.zeros(len(observations), np.int64)

        returns = evaluate(policy, config, episodes=5, seed=3)
    assert (made[0].num_envs, made[0].training) == (2, False)
    seeds = [moment.seed for moment in made[0].moments if moment.action is None]
    assert seeds == evaluation_seeds(3, 0, 5)
    assert returns == [sum(Episode.of(seed).rewards) for seed in seeds]
    expected = []
    for seed in seeds:
        frames = [frame_of(seed, time) for time in range(len(Episode.of(seed).rewards))]
        before = [frames[0] if fill == "repeat" else np.zeros_like(frames[0])] * 2
        expected += [np.concatenate([*before, *frames][time : time + 3]) for time in range(len(frames))]
    assert sorted(each.tobytes() for each in seen) == sorted(each.tobytes() for each in expected)


def test_progress_counts_the_episodes_that_ended_and_all_steps() -> None:
    """A ball of toy/catch falls for nine steps: five episodes in two envs end after 9, 18 and 27 steps of an env."""
    told: list[tuple[int, int]] = []
    env = envs.make("toy/catch", 2, training=False, config=CONFIG)
    play_episodes(chase, env, CONFIG, list(range(5)), progress=lambda ended, steps: told.append((ended, steps)))
    assert len(told) == 27
    assert [told[at] for at in (0, 7, 8, 17, 26)] == [(0, 2), (0, 16), (2, 18), (4, 36), (5, 45)]


class Recorded:
    """The vector envs that evaluations make, those of Atari and DMControl in two worker processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[VectorEnv] = []
        monkeypatch.setattr(envs.making, "num_workers_for", lambda task, num_envs: 1 if task.startswith("toy") else 2)

        def make(task: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> VectorEnv:
            self.made.append(envs.make(task, num_envs, training=training, config=config))
            return self.made[-1]

        monkeypatch.setattr(evaluation, "make", make)


def first_action(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Looks at the images, so that games which are drawn differently are played differently."""
    return observations.reshape(len(observations), -1).sum(1, dtype=np.int64) % 4


def swing(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    brightness = observations.reshape(len(observations), -1).mean(1, dtype=np.float64)
    return np.sin(1000 * brightness).astype(np.float32)[:, None]


@pytest.mark.parametrize(
    ("task", "frames", "policy"), [("atari/breakout", 400, first_action), ("dmc/cartpole-swingup", 80, swing)]
)
def test_worker_processes_stay_for_the_next_evaluation_and_change_nothing(
    task: str, frames: int, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, recorded = build(task, max_episode_frames=frames, eval_envs=2), Recorded(monkeypatch)
    with closing(Evaluator(config)) as evaluator:
        kept = [evaluator.evaluate(policy, episodes=3, seed=1, step=step) for step in (1, 2, 1)]
        assert len(recorded.made) == 1
        processes = [worker.process for worker in recorded.made[0]._workers]  # type: ignore[attr-defined]
        assert len(processes) == 2
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() == 0 for process in processes)
    assert kept[0] == kept[2] != kept[1]
    assert kept[1] == evaluate(policy, config, episodes=3, seed=1, step=2)


def test_worker_processes_of_an_interrupted_evaluation_and_dead_ones_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, recorded = build("atari/breakout", max_episode_frames=100, eval_envs=3), Recorded(monkeypatch)
    with closing(Evaluator(config)) as evaluator:
        whole = evaluator.evaluate(first_action, episodes=3, seed=1)
        with pytest.raises(ZeroDivisionError):
            evaluator.evaluate(lambda o: np.zeros(len(o) // 0, np.int64), episodes=3, seed=1)
        assert recorded.made[0]._workers == []  # type: ignore[attr-defined]  # closed
        assert evaluator.evaluate(first_action, episodes=3, seed=1) == whole
        recorded.made[1]._workers[0].process.kill()  # type: ignore[attr-defined]
        recorded.made[1]._workers[0].process.wait()  # type: ignore[attr-defined]
        assert len(evaluator.evaluate(first_action, episodes=4, seed=1)) == 4
        assert len(evaluator.evaluate(first_action, episodes=2, seed=1)) == 2
    assert [env.num_envs for env in recorded.made] == [3, 3, 3, 2]  # fewer episodes need fewer environments


def test_environments_of_this_process_are_made_anew_for_each_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)
    with closing(Evaluator(build("toy/catch", eval_envs=4))) as evaluator:
        assert evaluator.evaluate(chase, episodes=8, seed=1) == evaluator.evaluate(chase, episodes=8, seed=1)
    assert [env.num_envs for env in recorded.made] == [4, 4]
