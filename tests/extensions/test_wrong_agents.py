"""Agents of somebody else that break their contract: one line that names the method at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import playvirtual as pv
from playvirtual import envs
from playvirtual.config import registry

Overrides = dict[str, Any]
SMALL: dict[str, Any] = {
    "steps": 60,
    "learning_starts": 20,
    "eval_episodes": 2,
    "eval_every": 0,
    "quiet": True,
    "device": "cpu",
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Overrides]], None]:
    """Registers the agent `wrong`: a DQN with something overridden, given what the DQN itself is."""
    registry.load_all()
    for name in ("_agents", "_methods", "_samplers"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(envs.registry, "FAMILIES", dict(envs.registry.FAMILIES))
    from tests.extensions.tiny_extension import TinyConfig, TinyDQN  # which registers its own when first imported

    @dataclass(frozen=True)
    class WrongConfig(TinyConfig):
        """Of the wrong agent."""

    numbers = {f.name: 16 if f.type == "int" else 0.5 for f in fields(TinyConfig)}

    def registered(overrides: Callable[[Any], Overrides]) -> None:
        agent = type("Wrong", (TinyDQN,), overrides(TinyDQN))
        pv.register_agent(
            "wrong", agent, config=WrongConfig, actions="discrete", hyperparameters=WrongConfig(**numbers)
        )

    return registered


def act(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Overrides]:
    """The DQN whose actions are changed."""
    return lambda dqn: {"act": lambda self, o, explore=False: change(dqn.act(self, o, explore))}


def update(change: Callable[[pv.Update], Any]) -> Callable[[Any], Overrides]:
    """The DQN whose update returns something else."""
    return lambda dqn: {"update": lambda self, batch, schedule: change(dqn.update(self, batch, schedule))}


def schedules(of: dict[str, Any]) -> Callable[[Any], Overrides]:
    """The DQN with schedules."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        super(type(self), self).__init__(*args, **kwargs)
        self.schedules = of

    return lambda dqn: {"__init__": make}


def growing(dqn: Any) -> Overrides:
    """The DQN that has one metric more in each update."""

    def grow(self: Any, batch: Any, schedule: Any) -> pv.Update:
        self.count = getattr(self, "count", 0) + 1
        metrics = dqn.update(self, batch, schedule).metrics
        return pv.Update({**metrics, **{f"more_{n}": metrics["loss"] for n in range(self.count)}})

    return {"update": grow}


WRONG: dict[str, tuple[Callable[[Any], Overrides], str]] = {
    "actions of NumPy": (
        act(lambda a: a.numpy()),
        "act: the agent returned a ndarray; allowed: a tensor of integers (1,)",
    ),
    "actions with a dimension too many": (
        act(lambda a: a[:, None]),
        "act: the agent returned int64 of shape (1, 1) for 1 observations (N, C, H, W); allowed: integers (1,)",
    ),
    "actions that are no whole numbers": (
        act(lambda a: a + 0.3),
        "act: the agent returned float32 of shape (1,) for 1 observations (N, C, H, W); allowed: integers (1,)",
    ),
    "actions that there are not": (act(lambda a: 0 * a + 7), "act: the agent returned [7]; allowed: 0 to 2"),
    "no update": (
        update(lambda u: None),
        "update: the agent returned a NoneType; allowed: pv.Update(metrics), or with priorities",
    ),
    "metrics alone": (
        update(lambda u: u.metrics),
        "update: the agent returned a dict; allowed: pv.Update(metrics), or with priorities",
    ),
    "a metric for each sample": (
        update(lambda u: pv.Update({"loss": u.metrics["loss"].expand(16)})),
        "metrics: 'loss' is of shape (16,); allowed: a tensor of one number, as loss.mean().detach() is",
    ),
    "a number of Python": (
        update(lambda u: pv.Update({"loss": float(u.metrics["loss"])})),
        "metrics: 'loss' is a float; allowed: a tensor of one number, as loss.mean().detach() is",
    ),
    "a metric with its graph": (
        update(lambda u: pv.Update({"loss": u.metrics["loss"].clone().requires_grad_()})),
        "metrics: 'loss' is not detached; allowed: a tensor of one number, as loss.mean().detach() is",
    ),
    "other metrics in each update": (
        growing,
        "metrics: ['loss', 'q', 'more_0', 'more_1'] are those of an update; allowed: ['loss', 'q', 'more_0'], as of "
        "the updates before it, in this process or in the checkpoint",
    ),
    "a policy of parts that it has not": (
        lambda dqn: {"policy_parts": ("policy",)},
        "policy_parts: 'policy' of 'wrong' is not among its parts; allowed: q, target_q",
    ),
    "parts without names": (
        lambda dqn: {"parts": property(lambda self: [self.q])},
        "parts: a list of 'wrong'; allowed: a dict, name → nn.Module",
    ),
    "a schedule that is a number": (
        schedules({"rate": 0.3}),
        "schedules: 'rate' is 0.3; allowed: a function of the step",
    ),
    "a schedule in the place of a counter": (
        schedules({"step": float}),
        "schedules: 'step' is in every line of metrics; allowed: another name",
    ),
    "another way to be made": (
        lambda dqn: {"__init__": lambda self, config, observation_shape, action_space, device: None},
        "agent: 'wrong' cannot be made (got an unexpected keyword argument 'generator'); allowed: a class that takes "
        "(config, observation_shape, action_space, device, generator, bf16)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_agent_that_breaks_its_contract_is_one_line(what: str, register: Any, tmp_path: Path) -> None:
    overrides, message = WRONG[what]
    register(overrides)
    with pytest.raises(pv.InputError) as caught:
        pv.train("toy/catch", method="wrong", run_dir=tmp_path / "run", **SMALL)
    assert str(caught.value) == message


def test_values_of_another_shape_are_one_line_where_a_video_shows_them(register: Any, tmp_path: Path) -> None:
    register(lambda dqn: {"action_values": lambda self, o: self.q(torch.as_tensor(o)[None] / 255)})
    run = pv.train("toy/catch", method="wrong", run_dir=tmp_path / "run", **SMALL)
    with pytest.raises(pv.InputError) as caught:
        pv.video(run)
    assert str(caught.value) == (
        "action_values: of shape (1, 3) for one observation (C, H, W); allowed: (3,), as (…, |A|) for (…, C, H, W)"
    )


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_a_run_whose_agent_counts_actions_in_another_type_resumes(
    kind: torch.dtype, register: Any, tmp_path: Path
) -> None:
    """Its checkpoints had an episode's actions in that type, which no resumed run took."""
    register(act(lambda actions: actions.to(kind)))
    pv.train("toy/catch", method="wrong", run_dir=tmp_path / "run", **{**SMALL, "steps": 44})
    assert len(pv.resume(tmp_path / "run", steps=60, quiet=True).returns) == 2
