"""What a real run's updates are given: schedules at the step that they belong to, the parts that are due, the means."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest
import torch

import playvirtual as pv
from playvirtual.agents.agent import Schedule, Update
from playvirtual.replay.batches import SacBatch
from playvirtual.training.learner import NonFinite, NonFiniteGuard
from playvirtual.training.trainer import Trainer
from tests.training.small import CONTINUOUS

OPTIONS: dict[str, Any] = {
    **CONTINUOUS,
    "learning_starts": 20,
    "i_end": 100,
    "lambda_cyc_max": 0.8,
    "dynamics_hidden": 8,
    "projection_hidden": 8,
}
PERIODS = {"actor": 2, "critic_target": 3, "momentum": 1}


def learned(trainer: Trainer, steps: int) -> list[tuple[dict[str, float], frozenset[str], dict[str, float]]]:
    """The schedules, the parts due and the metrics of every update of the next steps."""
    update, found = trainer.agent.update, []

    def recorded(batch: SacBatch, schedule: Schedule) -> Update:
        result = update(batch, schedule)
        metrics = {name: float(value) for name, value in result.metrics.items()}
        found.append(({name: float(value) for name, value in schedule.items()}, schedule.due, metrics))
        return result

    trainer.agent.update = recorded  # type: ignore[method-assign]
    trainer.train(steps)
    trainer.agent.update = update  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(("unit", "frames"), [("agent", 1), ("environment", 4)])
def test_schedules_are_those_of_the_step_that_an_update_belongs_to(unit: str, frames: int) -> None:
    """The first update is made in step 20, with 20 steps or 80 frames taken; two belong to each step."""
    with closing(Trainer(pv.build("toy/reach", **OPTIONS, step_unit=unit, updates_per_step=2))) as trainer:
        updates = learned(trainer, 30)
    expected = []
    for step in range(20, 31):
        progress = min(frames * step / 100, 1.0)
        expected += 2 * [0.8 * math.exp(-5 * (1 - progress) ** 2)]
    assert [schedules.keys() for schedules, *_ in updates] == [{"lambda_cyc"}] * len(expected)
    assert [schedules["lambda_cyc"] for schedules, *_ in updates] == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) > 5  # it moves; after 100 frames it is at its maximum


def test_the_agent_acts_from_the_step_on_in_which_it_learns_first() -> None:
    with closing(Trainer(pv.build("toy/reach", **{**OPTIONS, "method": "rl", "K": 0}))) as trainer:
        act, acted = trainer.agent.act, []

        def recorded(observation: Any, explore: bool = False) -> Any:
            assert explore
            acted.append(trainer.step)
            return act(observation, explore)

        trainer.agent.act = recorded  # type: ignore[method-assign]
        trainer.train(24)
        assert acted == [20, 21, 22, 23]


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_random_play_is_uniform(task: str) -> None:
    with closing(Trainer(pv.build(task, device="cpu", learning_starts=500, steps=1000))) as trainer:
        trainer.train(400)
        played = trainer.replay.actions[trainer.replay.has_action]
    assert len(played) == 400
    if task == "toy/catch":
        assert all(abs(int(count) - 133) < 40 for count in played.bincount(minlength=3))
        assert played.unique().tolist() == [0, 1, 2]
        return
    assert len(set(played.flatten().tolist())) == 800
    for dimension in played.T.double():
        assert float(dimension.abs().max()) <= 1
        assert float(dimension.mean()) == pytest.approx(0.0, abs=0.12)
        assert float(dimension.std()) == pytest.approx(3**-0.5, abs=0.06)


def test_parts_are_due_in_turn_from_the_first_update_on() -> None:
    periods = {f"{part}_period": period for part, period in PERIODS.items()}
    with closing(Trainer(pv.build("toy/reach", **OPTIONS, **periods))) as trainer:
        updates = learned(trainer, 27)
    assert len(updates) == 8
    for number, (_, due, metrics) in enumerate(updates):
        assert due == {part for part, period in PERIODS.items() if number % period == 0}
        assert ("loss_actor" in metrics) == (number % 2 == 0)


def test_metrics_are_means_over_the_updates_that_have_them() -> None:
    with closing(Trainer(pv.build("toy/reach", **OPTIONS))) as trainer:
        for steps in (25, 4):
            updates = learned(trainer, steps)
            line = trainer.metrics()
            for name in updates[0][2].keys() | updates[1][2].keys():
                values = [metrics[name] for *_, metrics in updates if name in metrics]
                assert line[name] == pytest.approx(sum(values) / len(values), rel=1e-4, abs=1e-6), name
            assert line["lambda_cyc"] == pytest.approx(updates[-1][0]["lambda_cyc"])
            assert line["step"] == trainer.step
        assert line["updates"] == 29 - 20 + 1
        assert "loss_critic" not in trainer.metrics()


def test_the_guard_keeps_the_first_update_that_is_not_finite() -> None:
    """Two kinds of updates in turn; the third has one bad loss of two, and the fifth is worse."""
    guard = NonFiniteGuard(torch.device("cpu"))
    losses = [(1.0, 2.0), (3.0, 4.0), (5.0, math.nan), (6.0, 7.0), (math.inf, math.inf)]
    for number, (a, b) in enumerate(losses):
        assert (guard.found() is None) == (number < 3)
        metrics = {"loss_a": torch.tensor(a), "q": torch.tensor(math.nan), "loss_b": torch.tensor(b)}
        guard.check(number % 2, metrics, {"transitions": torch.tensor([10 * number, 10 * number + 1])})
    assert guard.found() == NonFinite(["loss_b"], 3, {"transitions": [20, 21]})
