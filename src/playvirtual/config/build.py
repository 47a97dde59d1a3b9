"""The configuration of a run, put together from its task, method, preset and single options."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import Field, fields, replace
from math import inf
from typing import Any

from playvirtual import envs
from playvirtual.calls import explained
from playvirtual.config import fit, registry
from playvirtual.config.hyperparameters import DEFAULTS, DMC_CHANGES
from playvirtual.config.schema import PRESETS, Config, validated, with_defaults
from playvirtual.device import is_gpu
from playvirtual.envs.arguments import as_texts
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError, shown, unknown
from playvirtual.options import as_text, coerce, leaves, types_of

CHOSEN = ("task", "method", "preset")  # what a run is of: no default
FITTED = ("size", "fitted_to")  # how settings were fitted to an environment, and to what


@explained
def build(task: str, *, method: str = "playvirtual", preset: str = "paper", **options: Any) -> Config:
    """The configuration of a run of a task that can be played here."""
    if not isinstance(task, str):
        hint = "; what makes an environment of your own is given as env=…" if callable(task) else ""
        raise InputError(f"task: {shown(task)} is not allowed; allowed: a name such as 'atari/pong'{hint}")
    envs.import_modules(options.get("imports", ()))
    envs.check(task)
    return assemble(task, method, preset, options)


def assemble(task: str, method: str, preset: str, options: Mapping[str, Any], agent_kind: str = "") -> Config:
    """The task's defaults, the preset, the method, then single options; `agent_kind` as in `base`.

    Whether the task can be played here is not asked: runs are reported where their simulator is not installed.
    """
    options = {**options, "env_args": as_texts(options["env_args"])} if "env_args" in options else options
    config = defaults(task, method, preset, options, agent_kind)
    # What settings are fitted to, and how, `defaults` has set.
    return complete(with_defaults(config, {name: v for name, v in options.items() if name not in FITTED}))


def defaults(task: str, method: str, preset: str, options: Mapping[str, Any], agent_kind: str = "") -> Config:
    """The settings of a task as preset and method change them, not checked; `options` and `agent_kind` as in `base`."""
    spec = registry.method(method)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    config = replace(base(task, agent_kind, method, options), method=method, preset=preset)
    if preset == "reference":
        own = registry.agent_of(config.agent)
        config = _changed(config, own.reference_changes, (), f"reference_changes of the agent {own.name!r}")
    # An option that only the method's agent for the other kind of actions has is left to that one.
    elsewhere = {f.name for name in spec.agents.values() for f in fields(registry.agent(name).config)}
    elsewhere -= {f.name for f, _, _ in leaves(config)}
    return _changed(config, spec.changes, elsewhere, f"changes of the method {method!r}")


def _changed(config: Config, values: Mapping[str, Any], left_out: Collection[str], source: str) -> Config:
    """`with_defaults` by what was registered, which errors name: no flag of the command line is at fault."""
    try:
        for name in (*CHOSEN, *FITTED):
            if name in values:
                raise InputError(f"{name}: {shown(values[name])} is not allowed there; allowed: other options of a run")
        return with_defaults(config, {name: value for name, value in values.items() if name not in left_out})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def complete(config: Config) -> Config:
    """The same configuration; raises where its options do not fit together, to its task, or to its number of steps."""
    envs.check_options(config.task, validated(config).environment)
    return _check_learns(config)


def base(
    task: str, agent_kind: str = "", method: str = "playvirtual", options: Mapping[str, Any] | None = None
) -> Config:
    """The settings of a task, with the agent of the method, before method, preset and options change them.

    `agent_kind` is the agent's name in a config.json; with it the kind of actions of a Gymnasium environment, which
    would have to be made to find out, is known. Of the options those count that settings are fitted to: `env_args`,
    `steps`, `device`, `size`, and `fitted_to` for a recorded run, whose environment is not made.
    """
    given, family = options or {}, envs.family(task)
    env_args = as_texts(given.get("env_args", ()))
    if envs.env_family(task).tasks is not None:
        envs.check_name(task)
    kind = action_kind(task, agent_kind, env_args)
    found = [DEFAULTS[key, kind] for key in (task, family, "gym") if (key, kind) in DEFAULTS]
    config = replace(found[0], task=task)
    agent = registry.agent(agent_kind) if agent_kind else registry.method(method).agent_for(kind, task)
    if agent is not registry.agent_of(config.agent):
        config = replace(config, agent=agent.options_for(task))
    # A family may change options that other agents have; a name that none has is an error.
    elsewhere = {f.name for f, _ in every_option()} - {f.name for f, _, _ in leaves(config)}
    usual = DMC_CHANGES.get(task.partition("/")[2].partition("-")[0], {}) if family == "dmc" else {}
    own = {name: v for name, v in envs.env_family(task).options.items() if name != "size"}  # which `_fitted` has read
    changes = {**_fitted(config, kind, given, recorded=bool(agent_kind)), **usual}
    config = _changed(config, agent.run_options_for(task), elsewhere, f"run_options of the agent {agent.name!r}")
    config = with_defaults(config, {name: v for name, v in changes.items() if name not in elsewhere})
    return _changed(config, own, elsewhere, f"options of the env family {family!r}")


def _fitted(config: Config, kind: ActionKind, given: Mapping[str, Any], *, recorded: bool) -> dict[str, Any]:
    """What the size that is given, or that fits an environment of one's own, changes in the settings of a task."""
    size, steps, device = fit.size_steps_device(given)
    spec = envs.env_family(config.task)
    if spec.own_settings and size:
        raise InputError(f"size: {size!r} is not allowed; allowed: none, as {config.task} has settings of its own")
    if not spec.fitted:
        return _sized(config, kind, size, spec.options)
    if recorded:
        if not given.get("fitted_to"):  # a run of an earlier version
            return {}
        fit.check_size(size)
        fitted_to = fit.Fit.parse(str(given["fitted_to"]))
    else:
        info = envs.inspect_env(config.task, as_texts(given.get("env_args", ())))
        size = size or fit.choose_size(info.shape, on_gpu=is_gpu(device))
        fitted_to = fit.Fit.of(info, steps or fit.STEPS[size])
    changes = fit.fitted_changes(size, kind, fitted_to, config)
    return {"steps": fit.STEPS[size], **changes, "size": size, "fitted_to": str(fitted_to)}


def _sized(config: Config, kind: ActionKind, size: str, family_options: Mapping[str, Any]) -> dict[str, Any]:
    """What a size changes in a benchmark's settings: the given one, or that of its family's options if none is given.

    An image size among the family's options stays, and the networks fit it.
    """
    if not size and (size := str(family_options.get("size") or "")):
        fit.check_size(size)
    if size in ("", "paper"):
        return {"size": size} if "size" in family_options else {}
    image = family_options.get("image_size") or min(config.environment.image_size, fit.SIDES[size])
    changes = fit.sized_changes(size, kind, coerce("image_size", int, image), config)
    return {**changes, "grayscale": config.environment.grayscale, "size": size}


def action_kind(task: str, agent_kind: str = "", env_args: tuple[str, ...] = ()) -> ActionKind:
    """Whether a task has discrete or continuous actions, for a recorded run by the agent that it was made with."""
    if agent_kind and len(kinds := registry.agent(agent_kind).actions) == 1:
        return next(iter(kinds))
    if agent_kind:
        envs.check_trusted(task, "a run's config.json", trust_env=False)
    return envs.action_kind(task, env_args)


def train_command(config: Config) -> str:
    """The command that trains with this configuration: the options that its task, method and preset have not, as flags.

    The device is left out: a run may be made on any.
    """
    fitted = {"size": config.size, "fitted_to": config.fitted_to}
    default = assemble(config.task, config.method, config.preset, fitted, registry.agent_of(config.agent).name)
    words = ["playvirtual", "train", config.task]
    words += [word for module in config.imports for word in ("--import", module)]
    words += [word for argument in config.environment.env_args for word in ("--env-arg", argument)]
    words += ["--size", config.size] if config.size else []
    words += [] if config.method == "playvirtual" else ["--method", config.method]
    words += [] if config.preset == "paper" else ["--preset", config.preset]
    pairs = zip(leaves(config), leaves(default), strict=True)
    changed = [
        (f.name, value)
        for (f, _, value), (_, _, usual) in pairs
        if f.name == "seed" or (value != usual and f.name not in ("device", "imports", "env_args"))
    ]
    words += [word for name, value in changed for word in (f"--{name.replace('_', '-')}", as_text(value))]
    return shlex.join(words)


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
        hints = types_of(spec.config)
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
