"""The setting of a run: its method, its preset, and the options that differ from their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from playvirtual import files
from playvirtual.config.build import assemble
from playvirtual.config.fit import Fit, choose_size
from playvirtual.config.record import NOTES, to_dict
from playvirtual.config.schema import Config
from playvirtual.envs.registry import env_family
from playvirtual.errors import InputError, shown

# Options that name a run, and options that change its speed or its logs but not what is learned.
RUN_NAMES = frozenset(("task", "method", "preset", "seed", "fitted_to"))
SPEED_ONLY = frozenset(
    ("agent_kind", "device", "threads", "compile", "log_every", "checkpoint_every", "video_at_evaluation", "imports")
)
OTHER_RUNS = ("encoder_from", "init_from")  # options that name another run


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Option → plain value of a configuration as `to_dict` or config.json has it, without its groups."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if name in NOTES:
            continue
        if isinstance(value, Mapping):
            found |= flat(value)
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def speed_only(options: Mapping[str, Any]) -> frozenset[str]:
    """The options that change no number of a run with these values.

    An evaluation draws the random actions of its envs in turn: the number of envs matters unless `eval_epsilon` is 0.
    """
    return SPEED_ONLY if options.get("eval_epsilon") else SPEED_ONLY | {"eval_envs"}


def changes(record: Mapping[str, Any]) -> dict[str, Any]:
    """Option → value where a configuration differs from the defaults of its task, method and preset.

    Options that only one of the two has (a run of another version) are left out.
    """
    names = (str(record[name]) for name in ("task", "method", "preset", "agent_kind"))
    default = _defaults(*names, *(str(record.get(name, "")) for name in ("size", "fitted_to")))
    given = flat(record)
    for name in OTHER_RUNS:
        if given.get(name):
            given[name] = origin(str(given[name]))
    for name, value in default.items():
        if name in given and not _is_like(given[name], value):
            raise InputError(f"config.json: {name}: {shown(given[name])} is not allowed; allowed: one like {value!r}")
    return {
        name: given[name]
        for name, value in default.items()
        if name not in RUN_NAMES | speed_only(given) and name in given and given[name] != value
    }


def _is_like(given: Any, default: Any) -> bool:
    """Whether a value in a config.json is of the kind of an option's default."""
    if isinstance(default, list):
        return isinstance(given, list) and all(files.is_number(item) or isinstance(item, str) for item in given)
    if isinstance(default, bool | str):
        return isinstance(given, type(default))
    if default is None:
        return given is None or files.is_number(given)
    return files.is_number(given)


def other_results(finished: Mapping[str, Any], wanted: Config) -> list[str]:
    """Lines "name: old → new" for the options that decide a finished run's numbers and differ from those wanted.

    `config.differences`, for a run that is resumed, is stricter: all options must be those that it was started with.
    """
    before, after = {**_defaults_of_options(wanted), **flat(finished)}, flat(to_dict(wanted))
    # Only the setting of the other run counts: both may have been moved to another folder.
    before, after = ({**c, **{name: origin(str(c[name])) for name in OTHER_RUNS}} for c in (before, after))
    return [
        f"{name}: {before.get(name, 'absent')} → {value}"
        for name, value in after.items()
        if name not in speed_only(after) and before.get(name, "absent") != value
    ]


def _defaults_of_options(config: Any) -> dict[str, Any]:
    """Option → its class' default, which the runs of versions that did not have the option yet are taken to have."""
    found: dict[str, Any] = {}
    for field in fields(config):
        if is_dataclass(value := getattr(config, field.name)):
            found |= _defaults_of_options(value)
        elif field.default is not MISSING:
            found[field.name] = list(field.default) if isinstance(field.default, tuple) else field.default
    return found


def origin(run: str) -> str:
    """The setting in the path of a run folder: "spr" of runs/dmc-cheetah-run/spr/seed-1."""
    path = Path(run)
    return path.parent.name if re.fullmatch(r"seed-\d+", path.name) else path.name


def setting_name(method: str, preset: str, changed: Mapping[str, Any]) -> str:
    """The setting as tables show it: "playvirtual, K = 3"."""
    shown = method if preset == "paper" else f"{method} ({preset})"
    return ", ".join([shown, *(f"{name} = {_text(value)}" for name, value in changed.items())])


def folder_name(method: str, preset: str, changed: Mapping[str, Any]) -> str:
    """The setting as run folders have it: "playvirtual-K3"; without changes as `playvirtual train` names them."""
    parts = [method if preset == "paper" else f"{method}-{preset}"]
    parts += [f"{name}{_text(value)}" for name, value in changed.items()]
    return re.sub(r"[^A-Za-z0-9._,+-]", "_", "-".join(parts))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _defaults(
    task: str, method: str, preset: str, agent_kind: str, size: str = "", fitted_to: str = ""
) -> dict[str, Any]:
    """The settings of a task of that size.

    A size counts as changed unless it is what the images alone would decide, or the size of the task's family.
    """
    config = assemble(task, method, preset, {"size": size, "fitted_to": fitted_to}, agent_kind)
    own = str(env_family(task).options.get("size") or "")
    usual = choose_size(Fit.parse(fitted_to).shape, on_gpu=False) if fitted_to else own
    return {**flat(to_dict(config)), "size": usual}
