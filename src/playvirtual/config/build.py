"""The configuration of a run, put together from its task, method, preset and single options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from math import inf
from typing import Any, get_type_hints

from playvirtual import envs
from playvirtual.config import registry
from playvirtual.config.hyperparameters import DEFAULTS, DMC_CHANGES
from playvirtual.config.schema import PRESETS, Config, validated, with_defaults
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError, unknown
from playvirtual.options import leaves


def build(task: str, *, method: str = "playvirtual", preset: str = "paper", **options: Any) -> Config:
    """The configuration of a run of a task that can be played here."""
    if not isinstance(task, str):
        raise InputError(f"task: {task!r} is not allowed; allowed: a name such as 'atari/pong'")
    envs.check(task)
    return assemble(task, method, preset, options)


def assemble(task: str, method: str, preset: str, options: Mapping[str, Any], agent_kind: str = "") -> Config:
    """The task's defaults, the preset, the method, then single options; `agent_kind` as in `base`.

    Whether the task can be played here is not asked: runs are reported where their simulator is not installed.
    """
    spec = registry.method(method)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    config = replace(base(task, agent_kind, method), method=method, preset=preset)
    if preset == "reference":
        config = with_defaults(config, registry.agent_of(config.agent).reference_changes)
    config = with_defaults(config, spec.changes)
    return complete(with_defaults(config, options))


def complete(config: Config) -> Config:
    """The same configuration; raises where its options do not fit together, to its task, or to its number of steps."""
    envs.check_options(config.task, validated(config).environment)
    return _check_learns(config)


def base(task: str, agent_kind: str = "", method: str = "playvirtual") -> Config:
    """The settings of a task, with the agent of the method, before method, preset and options change them.

    `agent_kind` is the agent's name in a config.json; with it the kind of actions of a Gymnasium environment, which
    would have to be made to find out, is known.
    """
    family = envs.family(task)
    if envs.env_family(task).tasks is not None:
        envs.check_name(task)
    kind = action_kind(task, agent_kind)
    found = [DEFAULTS[key, kind] for key in (task, family, "gym") if (key, kind) in DEFAULTS]
    config = replace(found[0], task=task)
    agent = registry.agent(agent_kind) if agent_kind else registry.method(method).agent_for(kind, task)
    if agent is not registry.agent_of(config.agent):
        config = replace(config, agent=agent.options_for(task))
    changes = DMC_CHANGES.get(task.partition("/")[2].partition("-")[0], {}) if family == "dmc" else {}
    changes = {**agent.run_options_for(task), **changes, **envs.env_family(task).options}
    # A family may change options that other agents have; a name that none has is an error.
    elsewhere = {f.name for f, _ in every_option()} - {f.name for f, _, _ in leaves(config)}
    return with_defaults(config, {name: v for name, v in changes.items() if name not in elsewhere})


def action_kind(task: str, agent_kind: str = "") -> ActionKind:
    """Whether a task has discrete or continuous actions, for a recorded run by the agent that it was made with."""
    if agent_kind and len(kinds := registry.agent(agent_kind).actions) == 1:
        return next(iter(kinds))
    if agent_kind:
        envs.check_trusted(task, "a run's config.json", trust_env=False)
    return envs.action_kind(task)


def method_names() -> tuple[str, ...]:
    """Every method, the paper's rows first."""
    return tuple(spec.name for spec in registry.methods())


def method_changes(name: str) -> Mapping[str, Any]:
    """What a method changes in the options of its task."""
    return registry.method(name).changes


def method_note(name: str) -> str:
    """One line that says what a method is."""
    return registry.method(name).note


def every_option() -> list[tuple[Field[Any], Any]]:
    """(field, its type) of every option of a configuration, those of all registered agents included."""
    shared = [(f, kind) for f, kind, _ in leaves(DEFAULTS["atari", "discrete"])]
    found = {f.name: (f, kind) for f, kind in shared}
    for spec in registry.agents():
        hints = get_type_hints(spec.config)
        for f in fields(spec.config):
            found.setdefault(f.name, (f, hints[f.name]))
    return list(found.values())


def _check_learns(config: Config) -> Config:
    """The same configuration, unless its updates would begin after its last step."""
    if config.agent_steps < config.first_update < inf:
        least = (int(config.first_update) - 1) * config.frames_per_step + 1
        raise InputError(
            f"steps: {config.steps} is not allowed; allowed: {least} or more, as the first update follows "
            f"{config.replay.learning_starts} agent steps of random play (learning_starts)"
        )
    return config
