"""Short trainings beside what a person works out: batches, schedules, random play, updates, evaluations.

The environment's episodes are written down beforehand: lost lives, time limits, ends, rewards beyond the clip. Every
batch of every update is compared with a list of these episodes (tests/replay/plain_replay.py).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.config.schema import Config
from playvirtual.runs.state import flatten_state, from_bytes, to_bytes, unflatten_state
from playvirtual.training import runner
from playvirtual.training.evaluation import evaluation_seeds
from playvirtual.training.trainer import Trainer
from tests.training.scripted_env import CONTINUOUS, DISCRETE, Episode, ScriptedEnv, scripted_tasks
from tests.training.watched_training import WatchedTraining

START, I_END, BETA_STEPS, REPEAT = 20, 150, 210, 3
WARM_UP = {"i_end": I_END, "lambda_cyc_max": 0.7}


@pytest.fixture(autouse=True)
def made() -> Iterator[list[ScriptedEnv]]:
    """Every environment that a test has made."""
    with scripted_tasks() as made:
        yield made


def lambda_cyc(frames: int) -> float:
    """0.7 · exp(−5 (1 − i/150)²) up to i = 150, then 0.7."""
    return 0.7 * math.exp(-5 * (1 - frames / I_END) ** 2) if frames < I_END else 0.7


def beta(frames: int) -> float:
    """From 0.2 to 0.9 on a straight line of 210 steps, then constant."""
    return 0.2 + 0.7 * frames / BETA_STEPS if frames < BETA_STEPS else 0.9


def discrete_config(**options: Any) -> Config:
    """PlayVirtual's Rainbow; β and λ_cyc change within 70 steps of 3 frames."""
    settings = {
        **DISCRETE,
        **WARM_UP,
        "steps": 10_000,
        "step_unit": "environment",
        "action_repeat": REPEAT,
        "learning_starts": START,
        "frame_stack": 2,
        "priority_beta_start": 0.2,
        "priority_beta_end": 0.9,
        "priority_beta_steps": BETA_STEPS,
        "updates_per_step": 1,
        "n_step": 4,
        "K": 2,
        "capacity": 47,
        "discount": 0.9,
        "priority_exponent": 0.6,
    }
    return pv.build("scripted/discrete", **{**settings, **options})


def discrete(**options: Any) -> WatchedTraining:
    """A training of `discrete_config`."""
    config = discrete_config(**options)
    return WatchedTraining(Trainer(config), lambda step: beta(step * config.frames_per_step))


def continuous(**options: Any) -> WatchedTraining:
    """PlayVirtual's SAC."""
    settings = {
        **CONTINUOUS,
        **WARM_UP,
        "steps": 10_000,
        "step_unit": "environment",
        "action_repeat": REPEAT,
        "learning_starts": START,
        "frame_stack": 3,
        "K": 3,
        "capacity": 41,
        "discount": 0.9,
    }
    return WatchedTraining(Trainer(pv.build("scripted/continuous", **{**settings, **options})))


def check_metrics(run: WatchedTraining, since: int = 0) -> None:
    """Means over the updates from number `since` on; a part that not every update moves counts where it moved."""
    line, updates = run.trainer.learner.metrics(), [update.metrics for update in run.updates[since:]]
    names = {name for update in updates for name in update}
    expected = {name: np.mean([update[name] for update in updates if name in update]) for name in names}
    assert line == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert run.trainer.learner.metrics() == {}


def check_schedules(run: WatchedTraining, frames: int = REPEAT) -> None:
    """λ_cyc, and β where there is one, count frames of the environment, and both move until they have arrived."""
    assert run.updates
    for update in run.updates:
        expected = {"lambda_cyc": lambda_cyc(update.step * frames)}
        if run.beta is not None:
            expected["beta"] = beta(update.step * frames)
        assert update.schedule == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"K": 3, "n_step": 2, "stack_fill": "repeat"},  # updates follow env.step, for the mask reads its result
        {"life_loss_is_terminal": False, "reward_clip": 0, "step_unit": "agent", "batch_size": 1, "lambda_pred": 0.6},
    ],
    ids=["updates-first", "env-first", "agent-steps"],
)
def test_every_update_of_rainbow(options: dict[str, Any]) -> None:
    """Batches, importance weights, priorities, λ_cyc and β of 55 updates; the ring wraps around.

    The importance weight of a batch of one is 1, so that there the sum of the losses can be told from their means.
    """
    run = discrete(**options)
    with closing(run.trainer):
        run.train(START - 1)
        assert not run.updates
        run.train(55)
    assert [update.step for update in run.updates] == [*range(START, START + 55)]
    check_schedules(run, 1 if "step_unit" in options else REPEAT)
    moved = [update.schedule["lambda_cyc"] for update in run.updates]
    assert moved == sorted(moved)
    assert moved[0] < 0.5 * moved[-1]
    assert {update.learning_rates[""] for update in run.updates} == {1e-4}
    assert len(run.plain.entries) > run.plain.capacity
    for update in run.updates if "batch_size" in options else ():
        losses = update.metrics
        weighed = losses["loss_rl"] + 0.6 * losses["loss_pred"] + lambda_cyc(update.step) * losses["loss_cyc"]
        assert losses["loss"] == pytest.approx(weighed, rel=1e-4)
    clips = {abs(reward) for episode in run.plain.episodes for reward in episode.rewards}
    assert clips == ({0.0, 0.25, 0.5, 1.0} if "step_unit" not in options else {0.0, 0.25, 0.5, 2.0, 3.0})


def test_every_update_of_sac() -> None:
    """Batches, λ_cyc and learning rates; the auxiliary loss is weighed with this λ_cyc."""
    rates = {"learning_rate": 1e-3, "auxiliary_learning_rate": 5e-4, "temperature_learning_rate": 2e-4}
    run = continuous(**rates, lambda_pred=0.6)
    with closing(run.trainer):
        run.train(START + 50)
        check_metrics(run)
        run.train(3)
        check_metrics(run, since=51)
    assert [update.step for update in run.updates] == [*range(START, START + 54)]
    check_schedules(run)
    expected = {"critic": 1e-3, "actor": 1e-3, "auxiliary": 5e-4, "temperature": 2e-4}
    assert all(update.learning_rates == expected for update in run.updates)
    assert len(run.plain.entries) > run.plain.capacity
    for update in run.updates:
        losses = update.metrics
        weighed = 0.6 * losses["loss_pred"] + lambda_cyc(REPEAT * update.step) * losses["loss_cyc"]
        assert losses["loss_auxiliary"] == pytest.approx(weighed, rel=1e-4)


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        (0.5, [21, 23, 25, 27, 29]),
        (0.4, [22, 24, 27, 29]),
        (1.0, [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]),
        (2.0, [20, 20, 21, 21, 22, 22, 23, 23, 24, 24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29]),
    ],
)
def test_the_steps_in_which_updates_are_made(rate: float, steps: list[int]) -> None:
    """After 20 steps of random play, of which the 20th is the first with an update."""
    run = discrete(updates_per_step=rate)
    with closing(run.trainer):
        run.train(29)
        assert [update.step for update in run.updates] == steps
        assert [run.trainer.step_of_update(n + 1) for n in range(len(steps))] == [REPEAT * step for step in steps]
    assert run.trainer.config.first_update == steps[0]
    check_schedules(run)


def test_target_networks_are_due_after_so_many_updates() -> None:
    """The last of every three updates of Rainbow; SAC's parts from the first update on, each with its period."""
    rainbow, sac = discrete(target_period=3), continuous(actor_period=2, critic_target_period=3, momentum_period=1)
    for run in (rainbow, sac):
        with closing(run.trainer):
            run.train(START + 6)
    assert ["target" in update.due for update in rainbow.updates] == [False, False, True, False, False, True, False]
    due = {name: [name in update.due for update in sac.updates] for name in ("actor", "critic_target", "momentum")}
    assert due == {
        "actor": [True, False, True, False, True, False, True],
        "critic_target": [True, False, False, True, False, False, True],
        "momentum": [True] * 7,
    }
    assert ["loss_actor" in update.metrics for update in sac.updates] == due["actor"]


def test_random_play_lasts_as_long_as_it_is_told_and_then_the_exploring_policy_acts() -> None:
    """60 random steps are taken without the agent; from the 61st on every action is the agent's, with noise."""
    for run in (discrete(learning_starts=60), continuous(learning_starts=60)):
        with closing(run.trainer):
            run.train(75)
        assert [ask.step for ask in run.asked] == [*range(61, 76)]
        assert all(ask.explore for ask in run.asked)
        for ask, action in zip(run.asked, run.taken[60:], strict=True):
            np.testing.assert_array_equal(ask.actions[0].numpy(), action)
        randoms = np.stack(run.taken[:60])
        if randoms.ndim == 1:  # 60 of 3 actions: 20 of each, ± 3 standard deviations
            counts = Counter(randoms.tolist())
            assert counts.keys() == {0, 1, 2}
            assert all(9 <= count <= 31 for count in counts.values())
        else:  # [−1, 1]²: both ends of both dimensions, which are independent
            assert randoms.min() >= -1
            assert randoms.max() <= 1
            assert (randoms.min(0) < -0.8).all()
            assert (randoms.max(0) > 0.8).all()
            assert np.abs(randoms.mean(0)).max() < 0.3
            assert abs(np.corrcoef(randoms.T)[0, 1]) < 0.4


def test_the_seed_decides_each_random_stream_of_its_own(made: list[ScriptedEnv]) -> None:
    """Weights, random play, what is drawn on the device, and every episode differ with the seed, and only with it."""
    seen: list[dict[str, Any]] = []
    for number, seed in enumerate((1, 1, 2)):
        with closing(Trainer(discrete_config(seed=seed))) as trainer:
            weights = torch.cat([p.detach().flatten() for p in trainer.agent.parts["encoder"].parameters()])
            drawn = torch.rand(3, generator=trainer.generator)
            trainer.train(12)
        moments = made[number].moments
        actions = torch.tensor([int(moment.action) for moment in moments if moment.action is not None])
        seeds = torch.tensor([moment.seed for moment in moments if moment.action is None])
        seen.append({"weights": weights, "drawn": drawn, "actions": actions, "seeds": seeds[:2]})
    for name, value in seen[0].items():
        assert torch.equal(value, seen[1][name]), name
        assert not torch.equal(value, seen[2][name]), name


def test_returns_are_those_of_whole_games_and_unclipped(made: list[ScriptedEnv]) -> None:
    """A lost life ends the agent's episode, not the game; every game has a seed of its own."""
    run = discrete()
    with closing(run.trainer):
        run.train(60)
        resets = [moment for moment in made[0].moments if moment.action is None]
        returns = [sum(Episode.of(moment.seed).rewards) for moment in resets[:-1]]
        assert run.trainer.episode_returns == pytest.approx(returns)
        line = run.trainer.metrics()
        assert line["return"] == pytest.approx(np.mean(returns))
        assert (line["episodes"], line["step"], line["updates"]) == (len(returns), 60 * REPEAT, 60 - START + 1)
        assert line["lambda_cyc"] == pytest.approx(lambda_cyc(60 * REPEAT))
        assert line["beta"] == pytest.approx(beta(60 * REPEAT))
        assert run.trainer.metrics()["return"] is None  # of the episodes that ended since the last line
    assert len({moment.seed for moment in resets}) == len(resets) > 5
    assert sum(moment.terminated and not moment.done for moment in made[0].moments) > 2


def test_an_evaluation_plays_whole_games_and_changes_nothing(made: list[ScriptedEnv]) -> None:
    """It plays without exploration and without lost lives, with the seeds of its step."""
    run = discrete(eval_epsilon=0.0)
    with closing(run.trainer):
        run.train(START + 4)
        random = run.trainer.generator.get_state()
        first = run.trainer.evaluate(run.trainer.evaluation_policy())
        assert torch.equal(run.trainer.generator.get_state(), random)
        asked = [ask for ask in run.asked if not ask.explore]
        assert asked
        assert {ask.step for ask in asked} == {START + 5}  # asked before the next step
        run.train(8)
        second = run.trainer.evaluate(run.trainer.evaluation_policy())
        assert run.trainer.evaluate(run.trainer.evaluation_policy()) == second
    training, *evaluations = made
    assert (training.training, training.num_envs) == (True, 1)
    played = []
    for env, returns in zip(evaluations, (first, second, second), strict=True):
        assert (env.training, env.num_envs) == (False, 3)
        seeds = [moment.seed for moment in env.moments if moment.action is None]
        assert returns == pytest.approx([sum(Episode.of(seed).rewards) for seed in seeds])
        assert not any(moment.terminated and not moment.done for moment in env.moments)
        played.append(seeds)
    assert len({*played[0], *played[1]}) == 8  # four episodes each, other ones at another step
    assert played[:2] == [evaluation_seeds(1, REPEAT * (START + steps), 4) for steps in (4, 12)]
    assert played[1] == played[2]


def test_a_run_counts_frames_in_schedules_evaluations_and_names_of_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """54 steps of 3 frames are the first to reach 160; logs and checkpoints are due by agent steps.

    Evaluations are due with the steps that reach or cross a multiple of 50 frames: 17, 34, 50, and the last.
    """
    saved: list[int] = []
    save = runner.Runner.save
    monkeypatch.setattr(runner.Runner, "save", lambda self: saved.append(self.trainer.step) or save(self))
    options = {**DISCRETE, **WARM_UP, "priority_beta_steps": 200, "updates_per_step": 0.5, "K": 2, "n_step": 3}
    options |= {"eval_every": 50, "log_every": 18, "checkpoint_every": 15, "steps": 160, "learning_starts": 30}
    options |= {"step_unit": "environment", "action_repeat": REPEAT}
    run = pv.train("scripted/discrete", run_dir=tmp_path / "run", quiet=True, **options)
    assert saved == [15, 17, 30, 34, 45, 50, 54]
    kept = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert kept == ["step-000000150", "step-000000162"]
    evaluations, metrics = (
        [json.loads(line) for line in (run.path / name).read_text().splitlines()]
        for name in ("evaluations.jsonl", "metrics.jsonl")
    )
    assert [line["step"] for line in evaluations] == [51, 102, 150, 162]
    assert [line["mean"] for line in evaluations] == pytest.approx([np.mean(line["returns"]) for line in evaluations])
    assert [line["step"] for line in metrics] == [54, 108, 162]
    assert [line["updates"] for line in metrics] == [0, 3, 12]
    # Values of the last update: none by step 18, then in steps 35 and 53; β goes from 0.4 to 1 in 200 frames.
    assert [line["lambda_cyc"] for line in metrics] == pytest.approx([lambda_cyc(0), lambda_cyc(105), 0.7])
    assert [line["beta"] for line in metrics] == pytest.approx([0.4, 0.715, 0.877])


def loaded(whole: Trainer, into: Trainer) -> None:
    """Loads the state of a training, as files would hold it, into a new one."""
    tree, tensors = flatten_state(whole.state_dict())
    state = unflatten_state(tree, from_bytes(to_bytes(tensors)))
    into.load_state_dict(state)
    into.replay.frames.copy_(whole.replay.frames)
    assert into.restore_env(state["env"])
    assert (into.global_step, into.last_return) == (whole.global_step, whole.last_return)
    assert into.episode_returns == whole.episode_returns
    assert {**into.learner.schedule} == {**whole.learner.schedule}


def test_a_training_loaded_from_its_state_learns_from_the_same_batches() -> None:
    """Priorities, replay, counters, random states and the frame that a time limit left belong to the state."""
    config = discrete_config(target_period=4)
    with closing(Trainer(config)) as whole, closing(Trainer(config)) as again:
        while whole.step < START + 10 or whole.state_dict()["truncated_frame"] is None:
            whole.train(1)
        loaded(whole, again)
        seen: list[list[Any]] = []
        for trainer in (whole, again):
            update, updates = trainer.agent.update, []

            def recorded(batch: Any, schedule: Any, update: Any = update, updates: list[Any] = updates) -> Any:
                result = update(batch, schedule)
                values = {name: value.clone() for name, value in schedule.items()}
                updates.append((batch, sorted(schedule.due), values, result))
                return result

            trainer.agent.update = recorded  # type: ignore[method-assign]
            trainer.train(6)
            seen.append(updates)
        assert len(seen[0]) == 6
        for one, other in zip(*seen, strict=True):
            torch.testing.assert_close(flatten_state(one)[1], flatten_state(other)[1], rtol=0, atol=0)
        assert whole.metrics() == again.metrics()


def test_random_play_loaded_from_its_state_goes_on_with_the_same_actions() -> None:
    config = discrete_config()
    with closing(Trainer(config)) as whole, closing(Trainer(config)) as again:
        whole.train(5)
        loaded(whole, again)
        for trainer in (whole, again):
            trainer.train(START - 5)
        assert whole.replay.num_added == again.replay.num_added
        assert torch.equal(whole.replay.actions, again.replay.actions)
        assert torch.equal(whole.replay.frames, again.replay.frames)
