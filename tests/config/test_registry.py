"""What may be registered, what is refused, and what becomes of extensions that fail."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, fields, replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import playvirtual as pv
from playvirtual import envs, extensions
from playvirtual.agents.agent import make_agent
from playvirtual.config import registry
from playvirtual.config.build import base
from playvirtual.config.hyperparameters import RAINBOW
from playvirtual.config.record import from_dict, to_dict
from playvirtual.config.schema import RainbowConfig, SacConfig
from playvirtual.errors import InputError


@dataclass(frozen=True)
class OwnConfig(pv.AgentConfig):
    """An agent of the tests."""

    own_size: int = pv.option("an option of its own", low=1)


@dataclass(frozen=True)
class WithoutHelp(OwnConfig):
    size: int = 3


@dataclass(frozen=True)
class WithSharedOption(OwnConfig):
    K: int = pv.option("steps")


OWN = OwnConfig(batch_size=4, updates_per_step=1.0, own_size=3)


def make_nothing(*_: Any, **__: Any) -> None:
    """Stands for a class; nothing is made in these tests."""


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_all()
    for name in ("_agents", "_methods", "_samplers"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(envs.registry, "FAMILIES", dict(envs.registry.FAMILIES))


def register_own(**changes: Any) -> None:
    given: dict[str, Any] = {"config": OwnConfig, "actions": "discrete", "hyperparameters": OWN, "note": "of a test"}
    pv.register_agent("own", make_nothing, **{**given, **changes})


def test_one_call_makes_an_agent_its_method_and_its_options_known() -> None:
    register_own()
    assert registry.methods()[-1].note == "of a test"
    config = pv.build("toy/catch", method="own", own_size=5)
    assert config.agent == replace(OWN, own_size=5)
    assert config.environment == pv.build("toy/catch").environment
    assert from_dict(to_dict(config)) == config


def test_hyperparameters_are_those_of_the_task_its_family_or_all_others() -> None:
    by_task = {key: replace(OWN, own_size=size) for key, size in (("", 1), ("toy", 2), ("toy/catch", 3))}
    register_own(actions=("discrete", "continuous"), hyperparameters=by_task)
    sizes = [pv.build(task, method="own").agent.own_size for task in ("minatar/breakout", "toy/reach", "toy/catch")]  # type: ignore[attr-defined]
    assert sizes == [1, 2, 3]


def test_a_task_without_hyperparameters_is_an_error() -> None:
    register_own(hyperparameters={"toy": OWN})
    with pytest.raises(InputError, match="'own' has no hyperparameters for 'minatar/breakout'; allowed: toy"):
        pv.build("minatar/breakout", method="own")


@pytest.mark.parametrize("name", ["", "with space", "a/b", "a,b", 3])
def test_a_name_must_fit_into_paths_and_lists(name: Any) -> None:
    with pytest.raises(InputError, match=r"not allowed as a name"):
        pv.register_sampler(name, make_nothing)
    with pytest.raises(InputError, match=r"not allowed as a name"):
        pv.register_method(name, agents={"discrete": "rainbow"})


def test_a_name_that_is_taken_is_refused_and_the_same_entry_is_not() -> None:
    with pytest.raises(InputError, match="sampler: 'uniform' is one of this package's own; allowed: another name"):
        pv.register_sampler("uniform", make_nothing)
    with pytest.raises(InputError, match="method: 'spr' is one of this package's own"):
        pv.register_method("spr", agents={"discrete": "rainbow"})
    with pytest.raises(InputError, match="agent: 'rainbow' is one of this package's own"):
        pv.register_agent("rainbow", make_nothing, config=OwnConfig, actions="discrete", hyperparameters=OWN)
    register_own()
    register_own()  # a module that is imported twice under two names registers the same again


def test_a_registration_of_ones_own_may_be_repeated_with_changes(caplog: pytest.LogCaptureFixture) -> None:
    """As when a cell of a notebook is run again."""
    for factory in (lambda sigma: "first", lambda sigma: "second"):
        pv.register_sampler("of-a-notebook", factory)
    assert registry.load_sampler("of-a-notebook")(sigma=0.0) == "second"
    assert "the sampler 'of-a-notebook' is registered again; the newer one is used" in caplog.text


def test_a_method_that_is_taken_leaves_no_half_of_an_agent_behind() -> None:
    with pytest.raises(InputError, match="method: 'spr' is one of this package's own"):
        pv.register_agent("spr", make_nothing, config=OwnConfig, actions="discrete", hyperparameters=OWN)
    assert "spr" not in {spec.name for spec in registry.agents()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": "digital"}, "actions: 'digital' is not known; .*allowed: continuous, discrete"),
        ({"actions": ()}, "actions: none is given for 'own'; allowed: discrete, continuous"),
        ({"hyperparameters": RAINBOW}, "hyperparameters: .* is not allowed; allowed: a OwnConfig"),
        ({"hyperparameters": {"toy": 3}}, "hyperparameters: 3 of 'toy' is not allowed; allowed: a OwnConfig"),
        (
            {"config": RainbowConfig, "hyperparameters": RAINBOW},
            "config: RainbowConfig is that of the agent 'rainbow'; allowed: one of its own",
        ),
        ({"config": dict, "hyperparameters": {"": {}}}, "config: dict is not allowed; allowed: a .*AgentConfig"),
        ({"config": OWN}, "config: .* is not allowed; allowed: a .*AgentConfig"),
        ({"config": WithoutHelp}, "config: WithoutHelp.size has no help; allowed: a field made by `option`"),
        ({"config": WithSharedOption}, "config: WithSharedOption.K is an option of every run; allowed: another name"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        register_own(**changes)
    assert "\n" not in str(refused.value)
    assert "own" not in {spec.name for spec in registry.agents()}


def test_a_class_that_does_not_fulfil_the_contract_is_refused_with_what_it_lacks() -> None:
    class ActsAlone:
        device = torch.device("cpu")

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def act(self, observation: Any, explore: bool = False) -> Any: ...

    pv.register_agent("own", ActsAlone, config=OwnConfig, actions="discrete", hyperparameters=OWN)
    config = pv.build("toy/catch", method="own")
    with pytest.raises(
        InputError, match=r"agent: 'own' lacks generator, .*, update, .*; allowed: a class that fulfils"
    ):
        make_agent(config, (1, 10, 10), 3, torch.device("cpu"), 0)


@pytest.mark.parametrize(
    ("kind", "agent", "task"), [("discrete", "sac", "atari/pong"), ("continuous", "rainbow", "toy/reach")]
)
def test_a_method_that_names_an_agent_for_the_other_kind_of_actions_is_one_line(
    kind: Any, agent: str, task: str
) -> None:
    """A run of it ended in an AssertionError without a text."""
    pv.register_method("swapped", agents={kind: agent})
    with pytest.raises(
        InputError, match=f"^method: 'swapped' names the agent '{agent}' for {kind} actions, which takes"
    ):
        pv.build(task, method="swapped")


def test_a_method_is_for_the_kinds_of_actions_that_its_agents_take() -> None:
    register_own()
    with pytest.raises(InputError, match="'own' is not for 'toy/reach' with continuous actions; allowed: discrete"):
        pv.build("toy/reach", method="own")


def test_a_method_of_an_agent_that_is_not_known_is_an_error_when_it_is_used() -> None:
    pv.register_method("half", agents={"discrete": "nothing"})
    with pytest.raises(InputError, match="'nothing' is not known"):
        pv.build("toy/catch", method="half")


def test_a_method_changes_options_before_single_options_do() -> None:
    pv.register_method("short", agents={"discrete": "rainbow", "continuous": "sac"}, changes={"K": 2, "M": "1"})
    assert pv.build("toy/catch", method="short").objective.K == 2
    assert pv.build("toy/reach", method="short", K=1).objective.K == 1


def test_an_option_of_another_agent_is_named_with_that_agent() -> None:
    register_own()
    with pytest.raises(InputError, match="option: 'n_step' is not one of the agent own; allowed: with rainbow"):
        pv.build("toy/catch", method="own", n_step=3)


def test_a_sampler_that_is_not_known_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="virtual_actions: 'unifrom' is not known; did you mean 'uniform'"):
        pv.build("toy/catch", virtual_actions="unifrom")
    pv.register_sampler("own", make_nothing)
    assert pv.build("toy/catch", virtual_actions="own").objective.virtual_actions == "own"


def test_a_family_changes_the_options_that_the_agent_has() -> None:
    register_own()
    options = {"n_step": 2, "image_size": 10}
    pv.register_env("own", make_nothing, tasks=("task",), actions="discrete", options=options)
    assert base("own/task").agent.n_step == 2  # type: ignore[attr-defined]
    config = base("own/task", method="own")
    assert config.environment.image_size == 10
    pv.register_env("typo", make_nothing, tasks=("task",), actions="discrete", options={"n_stepp": 2})
    with pytest.raises(InputError, match="option: 'n_stepp' is not known; did you mean 'n_step'"):
        base("typo/task")


def announce(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """As if packages with these entry points were installed and nothing had been loaded yet."""
    found = [EntryPoint(name, value, extensions.GROUP) for name, value in values.items()]
    monkeypatch.setattr(extensions, "entry_points", lambda group: found if group == extensions.GROUP else [])
    monkeypatch.setattr(extensions, "_loaded", set())


def test_an_extension_that_raises_is_a_warning_and_the_others_are_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("two\nlines")

    module = SimpleNamespace(fail=fail, register=register_own)
    monkeypatch.setitem(sys.modules, "module_of_a_test", module)
    announce(monkeypatch, bad="module_of_a_test:fail", gone="no_such_module", good="module_of_a_test:register")
    with caplog.at_level(logging.WARNING, "playvirtual"):
        assert "own" in {spec.name for spec in registry.agents()}
        registry.agents()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "the extension 'bad' cannot be loaded (RuntimeError: two lines)"
    assert "the extension 'gone' cannot be loaded (ModuleNotFoundError" in messages[1]
    assert len(messages) == 2  # loaded once, and so warned once


def dark(name: str, config: Any) -> Any:
    """Stands for a family's environments; none is made in these tests."""


@pytest.mark.parametrize("size_of", ["the family", "the run"])
@pytest.mark.parametrize("side", [8, 40])
def test_the_size_small_fits_networks_to_the_images_of_a_family(size_of: str, side: int) -> None:
    actions = {"left-or-right": "discrete", "anywhere": "continuous"}
    own, given = ({"size": "small"}, {}) if size_of == "the family" else ({}, {"size": "small"})
    pv.register_env("dark", dark, tasks=tuple(actions), actions=actions, options={"image_size": side, **own})  # type: ignore[arg-type]
    discrete, continuous = (pv.build(f"dark/{name}", **given) for name in actions)  # type: ignore[arg-type]
    assert discrete.environment.image_size == continuous.environment.image_size == side
    assert isinstance(discrete.agent, RainbowConfig)
    assert isinstance(continuous.agent, SacConfig)
    assert discrete.agent.channels == continuous.agent.channels == ((32,) if side == 8 else (16, 32))
    assert continuous.agent.crop_size == (8 if side == 8 else 37)
    for config in (discrete, continuous):
        assert config.size == "small"
        assert from_dict(to_dict(config)) == config


def test_a_run_may_choose_another_size_than_its_family() -> None:
    pv.register_env("dark", dark, tasks=("walk",), actions="discrete", options={"size": "small"})
    config = pv.build("dark/walk", size="paper")
    assert config.agent == pv.build("atari/pong").agent
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lamda_cyc": 2}, "option: 'lamda_cyc' is not known; did you mean 'lambda_cyc_max'?"),
        ({"K": "two"}, "K: 'two' is not allowed; allowed: a whole number"),
        ({"task": "toy/reach"}, "task: 'toy/reach' is not allowed there; allowed: other options of a run"),
        ({"method": "spr"}, "method: 'spr' is not allowed there; allowed: other options of a run"),
    ],
)
def test_wrong_options_of_what_is_registered_name_where_they_stand(values: dict[str, Any], message: str) -> None:
    pv.register_env("dark", dark, tasks=("walk",), actions="discrete", options=values)
    pv.register_method("mine", agents={"discrete": "rainbow"}, changes=values)
    register_own(run_options={"": values})
    wrong = {
        "options of the env family 'dark'": {"task": "dark/walk"},
        "changes of the method 'mine'": {"task": "toy/catch", "method": "mine"},
        "run_options of the agent 'own'": {"task": "toy/catch", "method": "own"},
    }
    for source, call in wrong.items():
        with pytest.raises(InputError) as caught:
            pv.build(**call)
        assert str(caught.value).startswith(f"{source}: {message}")


def test_a_method_may_change_options_that_one_of_its_agents_has() -> None:
    changes = {"n_step": 7, "q_tau": 0.03}
    pv.register_method("mine", agents={"discrete": "rainbow", "continuous": "sac"}, changes=changes)
    discrete, continuous = (pv.build(task, method="mine").agent for task in ("toy/catch", "toy/reach"))
    assert isinstance(discrete, RainbowConfig)
    assert isinstance(continuous, SacConfig)
    assert (discrete.n_step, continuous.q_tau) == (7, 0.03)
    pv.register_method("other", agents={"discrete": "rainbow"}, changes=changes)
    with pytest.raises(InputError, match="changes of the method 'other': option: 'q_tau' is not one of"):
        pv.build("toy/catch", method="other")


@dataclass(frozen=True)
class CalmConfig(RainbowConfig):
    """Rainbow with an option more."""

    decay: float = pv.option("weight of the squared latent state", low=0)


def test_an_agent_may_take_over_the_numbers_of_the_one_that_it_extends() -> None:
    mine = pv.hyperparameters_of("rainbow", CalmConfig, {"decay": "0.01", "n_step": 7})
    pv.register_agent("calm", make_nothing, config=CalmConfig, actions="discrete", hyperparameters=mine)
    for task in ("toy/catch", "minatar/breakout", "atari/pong"):
        calm, rainbow = pv.build(task, method="calm").agent, pv.build(task).agent
        shared = {f.name: getattr(rainbow, f.name) for f in fields(rainbow)}
        assert calm == CalmConfig(**{**shared, "n_step": 7}, decay=0.01)


@pytest.mark.parametrize(
    ("agent", "config", "changes", "message"),
    [
        ("rainbo", CalmConfig, {}, "agent_kind: 'rainbo' is not known; did you mean 'rainbow'?"),
        ("sac", CalmConfig, {"decay": 1}, "config: CalmConfig is not allowed; allowed: a subclass of SacConfig"),
        ("rainbow", 3, {}, "config: 3 is not allowed; allowed: a frozen dataclass, a subclass of AgentConfig"),
        ("rainbow", CalmConfig, {}, "changes: decay of CalmConfig is missing; allowed: a value for it"),
        ("rainbow", CalmConfig, {"decay": 1, "stepp": 2}, "option: 'stepp' is not known; did you mean"),
        ("rainbow", CalmConfig, {"decay": "much"}, "decay: 'much' is not allowed; allowed: a number"),
    ],
)
def test_numbers_that_cannot_be_taken_over_are_one_line(agent: str, config: Any, changes: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        pv.hyperparameters_of(agent, config, changes)
    assert str(caught.value).startswith(message)


def test_a_method_names_kinds_of_actions_that_there_are() -> None:
    with pytest.raises(InputError, match="agents: 'discret' is not known; did you mean 'discrete'"):
        pv.register_method("mine", agents={"discret": "rainbow"})  # type: ignore[dict-item]


def test_a_run_of_an_extension_that_is_not_there_says_what_it_needs() -> None:
    register_own()
    pv.register_sampler("of-mine", make_nothing)
    record = to_dict(pv.build("toy/catch", method="own"))
    guided = to_dict(pv.build("toy/catch", virtual_actions="of-mine"))
    for name in ("_agents", "_methods", "_samplers"):
        getattr(registry, name).pop("own", None)
        getattr(registry, name).pop("of-mine", None)
    for kind, wrong in (("agent_kind: 'own'", record), ("virtual_actions: 'of-mine'", guided)):
        with pytest.raises(InputError) as caught:
            from_dict(wrong)
        assert str(caught.value).startswith(f"{kind} is not known; ")
        assert str(caught.value).endswith(", and what an extension registers (installed, or --import)")
    for call in ({"task": "toy/catch", "method": "own"}, {"task": "corridor/own"}):
        with pytest.raises(InputError, match=r"and what an extension registers \(installed, or --import\)$"):
            pv.build(**call)


def test_a_sampler_that_takes_no_sigma_is_one_line() -> None:
    pv.register_sampler("plain", lambda seen: seen)
    with pytest.raises(
        InputError, match=r"^virtual_actions: 'plain' cannot be made with sigma=0.05 \(.*; allowed: a class"
    ):
        registry.make_sampler("plain", 0.05)


@pytest.mark.parametrize(
    ("made", "shown"), [(None, "None"), (print, "<built-in function print>"), ("uniform", "'uniform'")]
)
def test_what_is_no_sampler_is_one_line_and_not_the_default_in_its_place(made: Any, shown: str) -> None:
    """A factory that forgot to return its sampler trained on uniform actions under the factory's name."""
    pv.register_sampler("own", lambda sigma: made)
    with pytest.raises(InputError) as caught:
        registry.make_sampler("own", 0.05)
    assert str(caught.value) == (
        f"virtual_actions: 'own' made {shown}; allowed: a sampler, which is called with a SamplerInput and has "
        "`sees_state`, True or False"
    )
