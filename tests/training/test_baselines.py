"""The baselines and later methods end to end: each trains, resumes bit-exactly, is exported, and learns a toy."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

import playvirtual as pv
from playvirtual.agents.agent import make_agent
from playvirtual.config import baselines, modern
from playvirtual.training.evaluation import evaluate
from playvirtual.training.policy import AsyncPolicy
from playvirtual.training.trainer import Trainer
from tests.training.equal_runs import same
from tests.training.interrupting import interrupted

SMALL: dict[str, Any] = {"device": "cpu", "quiet": True, "log_every": 20, "checkpoint_every": 0, "hidden": 16}
CATCH = {**SMALL, "steps": 90, "learning_starts": 40, "eval_episodes": 4, "eval_every": 60, "capacity": 70}
REACH = {
    **SMALL,
    "steps": 80,
    "learning_starts": 50,
    "channels": "8",
    "batch_size": 8,
    "auxiliary_batch_size": 4,
    "eval_episodes": 2,
    "eval_every": 60,
}
METHODS = {**baselines.METHODS, **modern.METHODS}
# Methods with the objective on top draw more random numbers and have more networks; networks are reset after step 60.
EXTRA: dict[str, dict[str, Any]] = {
    method: {"K": 2, "M": 2} if method.endswith("virtual") else {} for method in baselines.METHODS
} | {method: {"K": 2, "reset_every": 30} | ({"M": 2} if "virtual" in method else {}) for method in modern.METHODS}
RUNS = [
    (task, method, {**options, **EXTRA[method]})
    for task, kind, options in (("toy/catch", "discrete", CATCH), ("toy/reach", "continuous", REACH))
    for method, (agents, _, _) in METHODS.items()
    if kind in agents
]


class NoWaiting(TorchDispatchMode):
    """Refuses what a CUDA graph cannot capture: reading a number on the host, a size that depends on numbers, and a
    tensor made of numbers of the host."""

    refused = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.refused, f"aten::{name} in a captured update"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("task", "method", "options"), RUNS, ids=[f"{task}-{method}" for task, method, _ in RUNS])
def test_updates_and_acting_can_be_captured(
    task: str, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of update from sampling to metrics, once Adam has its state; and exploring."""
    # PyTorch's own looks at its numbers, but not on a GPU.
    monkeypatch.setattr(F, "one_hot", lambda actions, n: (actions[..., None] == torch.arange(n)).long())
    copied = task == "toy/catch" and method in baselines.METHODS and not method.startswith("drq")
    rare = {"target_period": 2_000} if copied else {}
    values = {name: value for name, value in options.items() if name != "quiet"} | rare
    with closing(Trainer(pv.build(task, method=method, **values))) as trainer:
        trainer.train(options["learning_starts"] - 1)
        pattern = trainer.agent.update_pattern
        kinds = {pattern.kind(update) for update in range(pattern.period)}
        assert len(kinds) == (2 if rare or task == "toy/reach" else 1)
        for kind in kinds:
            trainer.learner.run_update(kind)
        observations = torch.from_numpy(trainer.env.observations)
        with NoWaiting():
            for kind in kinds:
                trainer.learner.run_update(kind)
            trainer.agent.act(observations, explore=True)


@pytest.mark.parametrize(("method", "updates_per_step"), [("der", 1), ("otr", 8)])
def test_exploration_and_target_updates_step_by_step(method: str, updates_per_step: int) -> None:
    """Learning starts in step 10 and the target network is copied every 3 steps: after steps 12, 15, 18, …

    OTR's ε is 1 in step 10, where it begins to fall, 0.1 from step 20 on, and 0.09 lower in each step between them.
    """
    exploration = {"epsilon_end": 0.1, "epsilon_decay_steps": 10} if method == "otr" else {}
    given = {"updates_per_step": updates_per_step, "target_period": 3 * updates_per_step, "n_step": 3}
    config = pv.build(
        "toy/catch", method=method, device="cpu", steps=24, learning_starts=10, hidden=8, **given, **exploration
    )
    copied, epsilons, updates = [], [], []
    with closing(Trainer(config)) as trainer:
        agent: Any = trainer.agent
        for step in range(1, 25):
            before = agent.target_encoder.convs[0].weight.clone()
            trainer.train(1)
            updates.append(trainer.learner.updates)
            epsilons.append(float(agent.epsilon) if exploration else None)
            after = agent.target_encoder.convs[0].weight
            if not torch.equal(before, after):
                assert torch.equal(after, agent.encoder.convs[0].weight)
                copied.append(step)
    assert updates == [0] * 9 + [updates_per_step * n for n in range(1, 16)]
    assert copied == [12, 15, 18, 21, 24]
    if exploration:
        falling = [1.0, 0.91, 0.82, 0.73, 0.64, 0.55, 0.46, 0.37, 0.28, 0.19]  # steps 10 to 19
        assert epsilons == pytest.approx([1.0] * 9 + falling + [0.1] * 5)


@pytest.mark.parametrize("method", ["spr-resets", "sr-spr", "bbf"])
def test_networks_are_reset_before_the_update_after_an_interval(method: str) -> None:
    """Adam counts its steps from the last reset on: learning starts in step 40, resets come after steps 60 and 90, and
    none after step 120, which leaves less than 30 more."""
    config = pv.build("toy/catch", method=method, device="cpu", steps=149, learning_starts=40, hidden=8, reset_every=30)
    per_step, counts = config.agent.updates_per_step, []
    with closing(Trainer(config)) as trainer:
        optimizer = trainer.agent.optimizer  # type: ignore[attr-defined]
        for step in (60, 70, 90, 100, 149):
            trainer.train(step - trainer.step)
            counts.append({int(state["step"]) for state in optimizer.state.values()})
    updates = [int(n * per_step) for n in (21, 31, 51, 61, 110)]  # in all
    since = [updates[0], updates[1] - updates[0], updates[2] - updates[0], *(n - updates[2] for n in updates[3:])]
    assert counts == [{n} for n in since]


@pytest.mark.slow
def test_a_run_with_resets_is_extended_as_if_it_had_been_longer(tmp_path: Path) -> None:
    """Its end is a moment of a reset, which comes when the run goes on."""
    options = {**CATCH, "method": "bbf", "K": 2, "reset_every": 30, "eval_every": 30}
    pv.train("toy/catch", run_dir=tmp_path / "whole", **{**options, "steps": 120})
    pv.train("toy/catch", run_dir=tmp_path / "parts", **{**options, "steps": 90})
    pv.train("toy/catch", run_dir=tmp_path / "parts", resume=True, **{**options, "steps": 120})
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    assert lines[0][-1] == lines[1][-1]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "options"), RUNS, ids=[f"{task}-{method}" for task, method, _ in RUNS])
def test_a_resumed_run_equals_an_uninterrupted_one(
    task: str, method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """And its policy, exported, scores the same."""
    options = {**options, "method": method}
    whole = pv.train(task, run_dir=tmp_path / "whole", **options)
    parts = tmp_path / "parts"
    interrupted(task, options, parts, 57)
    again = pv.train(task, run_dir=parts, resume=True, **options)
    assert again.returns == whole.returns
    same(tmp_path / "whole", parts)
    last = json.loads((parts / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["updates"] > 0
    assert np.isfinite([value for value in last.values() if value is not None]).all()
    pv.export(parts, out=tmp_path / "exported")
    assert pv.evaluate(tmp_path / "exported", device="cpu") == pytest.approx(whole.returns, abs=1e-4)


LEARNS: list[tuple[str, str, dict[str, Any], float]] = [
    # task, method, options, the score that a trained agent reaches
    ("toy/catch", "der", {"steps": 2_100, "learning_starts": 250}, 0.0),
    ("toy/catch", "otr", {"steps": 2_300, "learning_starts": 250, "epsilon_decay_steps": 400}, 0.0),
    ("toy/catch", "curl", {"steps": 2_500, "learning_starts": 300}, -0.2),
    ("toy/catch", "drq", {"steps": 1_500, "learning_starts": 300, "epsilon_decay_steps": 400}, 0.0),
    ("toy/catch", "spr-resets", {"steps": 3_000, "learning_starts": 300, "reset_every": 1_200}, 0.0),
    (
        "toy/catch",
        "sr-spr",
        {"steps": 2_200, "learning_starts": 250, "epsilon_decay_steps": 400, "reset_every": 1_000},
        0.0,
    ),
    (
        "toy/catch",
        "bbf",
        {
            "steps": 1_900,
            "learning_starts": 250,
            "epsilon_decay_steps": 400,
            "reset_every": 900,
            "updates_per_step": 1.0,
        },
        -0.2,
    ),
    ("toy/reach", "sac-ae", {"steps": 850, "learning_starts": 250}, 20.0),
    ("toy/reach", "curl", {"steps": 1_000, "learning_starts": 250}, 18.0),
    ("toy/reach", "drq", {"steps": 700, "learning_starts": 250}, 20.0),
    ("minatar/breakout", "der", {"steps": 8_000}, 2.0),
    ("minatar/breakout", "otr", {"steps": 8_000, "updates_per_step": 0.5, "epsilon_decay_steps": 3_000}, 2.0),
    ("minatar/breakout", "curl", {"steps": 8_000}, 2.0),
    ("minatar/breakout", "drq", {"steps": 8_000, "epsilon_decay_steps": 3_000}, 2.0),
]
UNTRAINED = {"toy/catch": -0.3, "toy/reach": 15.0, "minatar/breakout": 1.0}  # what no untrained agent reaches
QUICK = [
    *(("toy/catch", method) for method in ("der", "otr", "curl", "drq", "sr-spr", "bbf")),
    ("toy/reach", "sac-ae"),
    ("toy/reach", "drq"),
]


@pytest.mark.parametrize(("task", "method"), [(task, method) for task, method, _, _ in LEARNS])
def test_an_untrained_agent_fails(task: str, method: str) -> None:
    config = pv.build(task, method=method, device="cpu")
    shape, space = {
        "toy/catch": ((1, 10, 10), spaces.Discrete(3)),
        "toy/reach": ((3, 12, 12), spaces.Box(-1.0, 1.0, (2,), np.float32)),
        "minatar/breakout": ((4, 10, 10), spaces.Discrete(3)),
    }[task]
    agent = make_agent(config, shape, space, torch.device("cpu"), seed=1)
    policy = AsyncPolicy(agent)
    assert np.mean(evaluate(policy, config, episodes=60, seed=1)) < UNTRAINED[task]


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    ("task", "method", "options", "trained"),
    [pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=[] if row[:2] in QUICK else pytest.mark.long) for row in LEARNS],
)
def test_every_baseline_learns(task: str, method: str, options: dict[str, Any], trained: float, tmp_path: Path) -> None:
    given = {**options, "eval_every": 0, "eval_episodes": 60, "device": "cpu", "quiet": True}
    run = pv.train(task, method=method, seed=1, run_dir=tmp_path / "run", **given)
    assert run.score > trained > UNTRAINED[task]
