"""What can be named in a configuration: agents, methods and samplers of virtual actions, ours and those of extensions.

Entries are data. The code behind them is imported when it is first needed, as with `gymnasium.register`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from inspect import signature
from typing import Any, get_args

from playvirtual.calls import explained
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError, shown, unknown, unregistered
from playvirtual.extensions import EntryPoint, check_entry_point, load_extensions, resolve
from playvirtual.options import UnknownOption, coerce, types_of

ACTION_KINDS: tuple[ActionKind, ...] = get_args(ActionKind)


@dataclass(frozen=True)
class AgentSpec:
    """An agent: its class, its options, the action spaces it takes, its hyperparameters by task."""

    name: str
    entry_point: EntryPoint
    config: type  # a frozen dataclass, a subclass of AgentConfig, of this agent alone
    actions: frozenset[ActionKind]
    hyperparameters: Mapping[str, Any]  # "family/name", "family" or "" (every other task) → its options there
    reference_changes: Mapping[str, Any] = field(default_factory=dict)  # what preset `reference` changes
    run_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # task, family or "" → other options

    def load(self) -> Callable[..., Any]:
        """The class, imported if it was given by its name."""
        return resolve(self.entry_point)

    def options_for(self, task: str) -> Any:
        """The agent's hyperparameters on a task: those of the task, of its family, or of every task."""
        for key in (task, task.partition("/")[0], ""):
            if key in self.hyperparameters:
                return self.hyperparameters[key]
        known = ", ".join(sorted(self.hyperparameters))
        raise InputError(f"task: the agent {self.name!r} has no hyperparameters for {task!r}; allowed: {known}")

    def run_options_for(self, task: str) -> Mapping[str, Any]:
        """What this agent changes in the other options of a run: those of the task, of its family, or of every task."""
        found = (self.run_options[key] for key in (task, task.partition("/")[0], "") if key in self.run_options)
        return next(found, {})


@dataclass(frozen=True)
class MethodSpec:
    """A method of the command line: the agent for each kind of action space, and what it changes in the options."""

    name: str
    agents: Mapping[ActionKind, str]
    changes: Mapping[str, Any]
    note: str

    def agent_for(self, kind: ActionKind, task: str) -> AgentSpec:
        """The agent of this method for a task with that kind of action space."""
        if kind not in self.agents:
            allowed = " or ".join(self.agents)
            raise InputError(f"method: {self.name!r} is not for {task!r} with {kind} actions; allowed: {allowed} ones")
        chosen = agent(self.agents[kind])
        if kind not in chosen.actions:
            raise InputError(
                f"method: {self.name!r} names the agent {chosen.name!r} for {kind} actions, which takes "
                f"{' and '.join(sorted(chosen.actions))} ones; allowed: an agent for {kind} actions"
            )
        return chosen


_agents: dict[str, AgentSpec] = {}
_methods: dict[str, MethodSpec] = {}
_samplers: dict[str, EntryPoint] = {}
_built_in: set[str] = set()


@explained
def register_agent(
    name: str,
    entry_point: EntryPoint,
    *,
    config: type,
    actions: ActionKind | Iterable[ActionKind],
    hyperparameters: Any,
    reference_changes: Mapping[str, Any] | None = None,
    run_options: Mapping[str, Mapping[str, Any]] | None = None,
    note: str = "",
    method: bool = True,
) -> None:
    """Makes an agent known, and the method of the same name that picks it: `playvirtual train TASK --method NAME`.

    `entry_point` is the class, or "module:Class"; it is called as
    `Class(config, observation_shape, action_space, device=, generator=, bf16=)` and must fulfil `Agent`.
    `config` is its own frozen dataclass of options, a subclass of `AgentConfig`; `hyperparameters` an instance, or a
    mapping from "family/name", "family" or "" to one (`hyperparameters_of` makes it of another agent's). `actions`
    names the kinds of action spaces it takes. `run_options` maps the same keys to defaults of options that are not the
    agent's own, such as `learning_starts`; `reference_changes` are what preset `reference` changes. With
    `method=False` no method picks the agent until `register_method` names one.
    """
    _load_built_in()
    kinds = frozenset([actions] if isinstance(actions, str) else actions)
    for kind in kinds - set(ACTION_KINDS):
        raise unknown("actions", str(kind), ACTION_KINDS)
    if not kinds:
        raise InputError(f"actions: none is given for {name!r}; allowed: {', '.join(ACTION_KINDS)}")
    check_entry_point(entry_point)
    _check_options(config)
    by_task = hyperparameters if isinstance(hyperparameters, Mapping) else {"": hyperparameters}
    for task, options in by_task.items():
        if type(options) is not config:
            raise InputError(f"hyperparameters: {options!r} of {task!r} is not allowed; allowed: a {config.__name__}")
    for other in _agents.values():
        if other.config is config and other.name != name:
            raise InputError(f"config: {config.__name__} is that of the agent {other.name!r}; allowed: one of its own")
    spec = AgentSpec(
        name, entry_point, config, kinds, dict(by_task), dict(reference_changes or {}), dict(run_options or {})
    )
    _check_name(_agents, "agent", name, spec)
    if method:  # first, because it may be refused
        register_method(name, agents=dict.fromkeys(kinds, name), note=note)
    _agents[name] = spec


@explained
def hyperparameters_of(agent_name: str, config: Any, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The hyperparameters of a registered agent by task, as options of another agent that extends them.

    >>> register_agent("calm", "my_package.calm:Calm", config=CalmConfig, actions="discrete",
    ...                hyperparameters=hyperparameters_of("rainbow", CalmConfig, {"decay": 0.01}))  # doctest: +SKIP

    `config` is a frozen dataclass, a subclass of that agent's own ("rainbow" has `RainbowConfig`, "sac" `SacConfig`, of
    `playvirtual.config.schema`). `changes` are values on every task of options that it adds, and of others.
    """
    spec = agent(agent_name)
    _check_options(config)
    if not issubclass(config, spec.config):
        raise InputError(
            f"config: {config.__name__} is not allowed; allowed: a subclass of {spec.config.__name__}, the options of "
            f"{agent_name!r}"
        )
    types = types_of(config)
    names = [f.name for f in fields(config)]
    if strange := [name for name in changes or {} if name not in names]:
        raise UnknownOption(strange[0], names)
    given = {name: coerce(name, types[name], value) for name, value in (changes or {}).items()}
    theirs = [f.name for f in fields(spec.config)]
    if missing := [f.name for f in fields(config) if f.default is MISSING and f.name not in [*theirs, *given]]:
        raise InputError(f"changes: {', '.join(missing)} of {config.__name__} is missing; allowed: a value for it")
    return {
        task: config(**{**{name: getattr(options, name) for name in theirs}, **given})
        for task, options in spec.hyperparameters.items()
    }


@explained
def register_method(
    name: str,
    *,
    agents: Mapping[ActionKind, str],
    changes: Mapping[str, Any] | None = None,
    note: str = "",
) -> None:
    """Makes a method known: a name for an agent per kind of action space with some options changed."""
    _load_built_in()
    for kind in agents:
        if kind not in ACTION_KINDS:
            raise unknown("agents", str(kind), ACTION_KINDS)
    _add(_methods, "method", name, MethodSpec(name, dict(agents), dict(changes or {}), note))


@explained
def register_sampler(name: str, entry_point: EntryPoint) -> None:
    """Makes a sampler of virtual actions known: `--virtual-actions NAME`.

    `entry_point` is a class or function, or "module:Name"; called with `sigma=` it gives a `method.Sampler`.
    """
    _load_built_in()
    check_entry_point(entry_point)
    _add(_samplers, "sampler", name, entry_point)


def _check_options(config: Any) -> None:
    """Raises an InputError unless `config` is a frozen dataclass of options of an agent."""
    from playvirtual.config.schema import AgentConfig, shared_options

    if (
        not isinstance(config, type)
        or not issubclass(config, AgentConfig)
        or "__dataclass_params__" not in vars(config)
    ):
        shown = config.__name__ if isinstance(config, type) else repr(config)
        raise InputError(f"config: {shown} is not allowed; allowed: a frozen dataclass, a subclass of AgentConfig")
    for f in fields(config):
        if "help" not in f.metadata:
            raise InputError(f"config: {config.__name__}.{f.name} has no help; allowed: a field made by `option`")
        if f.name in shared_options():
            raise InputError(f"config: {config.__name__}.{f.name} is an option of every run; allowed: another name")


def _add(entries: dict[str, Any], what: str, name: str, entry: Any) -> None:
    _check_name(entries, what, name, entry)
    entries[name] = entry


def protect_built_in() -> None:
    """From now on the names that are registered belong to this package: another registration of one is refused."""
    _built_in.update(_agents, _methods, _samplers)


def is_built_in(name: str) -> bool:
    """Whether a registered agent, method or sampler comes with this package."""
    load_all()
    return name in _built_in


def _check_name(entries: Mapping[str, Any], what: str, name: str, entry: Any) -> None:
    if not isinstance(name, str) or not name or set(name) & set(" /\\,;"):
        raise InputError(f"{what}: {name!r} is not allowed as a name; allowed: no spaces, slashes, commas")
    if name in entries and entries[name] != entry:
        if name in _built_in or not _built_in:
            raise InputError(f"{what}: {name!r} is one of this package's own; allowed: another name")
        # As when a cell of a notebook is run again.
        logging.getLogger("playvirtual").warning("the %s %r is registered again; the newer one is used", what, name)


def agents() -> list[AgentSpec]:
    """Every agent."""
    load_all()
    return list(_agents.values())


def agent(name: str) -> AgentSpec:
    """The agent of that name."""
    load_all()
    if name not in _agents:
        raise unregistered("agent_kind", name, _agents)
    return _agents[name]


def agent_of(options: Any) -> AgentSpec:
    """The agent whose options these are."""
    load_all()
    for spec in _agents.values():
        if spec.config is type(options):
            return spec
    raise InputError(f"agent: {type(options).__name__} belongs to no agent; allowed: the options of a registered agent")


def method(name: str) -> MethodSpec:
    """The method of that name."""
    load_all()
    if name not in _methods:
        raise unregistered("method", name, _methods)
    return _methods[name]


def methods() -> list[MethodSpec]:
    """Every method, the paper's first."""
    load_all()
    return list(_methods.values())


def sampler_names() -> list[str]:
    """Every sampler of virtual actions."""
    load_all()
    return list(_samplers)


def load_sampler(name: str) -> Callable[..., Any]:
    """The class or function that makes the sampler of that name."""
    if name not in sampler_names():
        raise unregistered("virtual_actions", name, _samplers)
    return resolve(_samplers[name])


def make_sampler(name: str, sigma: float) -> Any:
    """The sampler of that name with noise of that scale."""
    make = load_sampler(name)
    try:
        signature(make).bind(sigma=sigma)
    except TypeError as error:
        raise InputError(
            f"virtual_actions: {name!r} cannot be made with sigma={sigma:g} ({error}); allowed: a class or function "
            "that takes `sigma` and gives a sampler"
        ) from None
    sampler = make(sigma=sigma)
    if isinstance(sampler, type) or not callable(sampler) or not hasattr(sampler, "sees_state"):
        raise InputError(
            f"virtual_actions: {name!r} made {shown(sampler)}; allowed: a sampler, which is called with a SamplerInput "
            "and has `sees_state`, True or False"
        )
    return sampler


def load_all() -> None:
    """Registers what comes with this package, then what installed extensions announce; once."""
    _load_built_in()
    load_extensions()


def _load_built_in() -> None:
    """Registers what comes with this package; while that happens, it does nothing."""
    import_module("playvirtual.config.builtin")
