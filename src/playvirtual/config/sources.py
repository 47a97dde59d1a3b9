"""A configuration from several sources: a TOML file, a mapping, another run's configuration, single options.

Sources are laid over each other; the later one wins. A configuration is written as TOML that can be read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from playvirtual import envs, files
from playvirtual.config import registry
from playvirtual.config.build import FITTED, complete, defaults, every_option, method_names
from playvirtual.config.record import NOTES
from playvirtual.config.schema import PRESETS, Config, with_defaults
from playvirtual.envs.arguments import as_texts
from playvirtual.errors import InputError, shown, unknown
from playvirtual.options import UnknownOption, leaves

NAMES = ("task", "method", "preset")
DEFAULT_NAMES = {"method": "playvirtual", "preset": "paper"}
GROUPS = ("environment", "objective", "agent", "replay", "evaluation")
OF_THE_ENV = ("imports", "env_args", "size")  # what belongs to an environment of one's own


class Source(NamedTuple):
    """Options by name, and what errors call the place that they come from."""

    values: Mapping[str, Any]
    where: str = ""  # "" for single options, whose errors name the option alone
    config: Config | None = None  # the whole configuration that the values were taken from, if there is one
    foreign: bool = False  # it is a file, which may be somebody else's


def from_config(config: Config, where: str = "config", *, foreign: bool = False) -> Source:
    """All options of a configuration; it is foreign if it comes from a run folder that this process has not made."""
    return Source({f.name: value for f, _, value in leaves(config)}, where, config, foreign)


def from_toml(path: Path | str) -> Source:
    """The options in a TOML file, named like the flags of `playvirtual train`, at the top or in tables of groups."""
    run = Path(path).parent if Path(path).name == "config.json" else Path(path)
    if files.is_file(run / "config.json", "config"):
        raise InputError(
            f"config: {str(path)!r} is a run's; allowed: a TOML file, or --like {run} (Python: like=…) for its options"
        )
    return from_mapping(files.read_toml(Path(path), "config"), f"config: {str(path)!r}")._replace(foreign=True)


def from_mapping(values: Mapping[Any, Any], where: str = "config") -> Source:
    """The options in a mapping as TOML or `to_dict` has it: learning_starts or learning-starts, in groups or not."""
    found: dict[str, Any] = {}
    for key, value in _ungrouped(values, where):
        name = str(key).replace("-", "_")
        if name in found:
            raise InputError(f"{where}: {name}: it is given twice; allowed: once")
        found[name] = value
    known = {f.name for f, _ in every_option()}
    for name, value in found.items():
        if name not in known and isinstance(value, Mapping):
            raise InputError(f"{where}: {unknown('table', name, GROUPS)}")
        if name not in known:
            raise InputError(f"{where}: {UnknownOption(name, known)}")
        if isinstance(value, Mapping):
            raise InputError(f"{where}: {name}: {shown(value)} is not allowed; allowed: a value, not a table")
    return Source(found, where)


def _ungrouped(values: Mapping[Any, Any], where: str) -> list[tuple[Any, Any]]:
    """(name, value) of every option; what a run folder adds to its options is left out."""
    found: list[tuple[Any, Any]] = []
    for key, value in values.items():
        if key in GROUPS:
            if not isinstance(value, Mapping):
                raise InputError(f"{where}: {key}: {shown(value)} is not allowed; allowed: a table of options")
            found += value.items()
        elif key not in ("agent_kind", *NOTES):
            found.append((key, value))
    return found


def names(sources: Sequence[Source]) -> dict[str, str]:
    """Task, method and preset of a run, each from the last source that has it; no task if none has."""
    found: dict[str, Any] = dict(DEFAULT_NAMES)
    for source in sources:
        with _naming([source]):
            found |= {name: _checked(name, source.values[name]) for name in NAMES if name in source.values}
    return found


def _checked(name: str, value: Any) -> Any:
    """The same name of a task, method or preset; whether a task can be played here is not asked."""
    if name == "task" and not isinstance(value, str):
        hint = "; what makes an environment of your own is given as env=…" if callable(value) else ""
        raise InputError(f"task: {shown(value)} is not allowed; allowed: a name such as 'atari/pong'{hint}")
    allowed = {"method": method_names(), "preset": PRESETS}.get(name)
    if allowed is not None and value not in allowed:
        raise unknown(name, value, allowed)
    return value


def configuration(sources: Sequence[Source], *, trust_env: bool = False) -> Config:
    """The configuration that the sources give together, of a task that can be played here.

    Where a later source names another task, method or preset, an earlier one gives only the values in which it differs
    from the defaults of its own and which the other method does not set: SPR's configuration with the method `rl` is
    that of RL, without prediction.
    `trust_env` allows a task of a file to name a module, which is imported.
    """
    chosen = names(sources)
    if "task" not in chosen:
        where = next((source.where for source in reversed(sources) if source.where), "")
        missing = "task: none is given; allowed: a name such as 'toy/catch', or env=… for one of your own"
        raise InputError(f"{where}: {missing}" if where else missing)
    check_trusted_sources(sources, trust_env=trust_env)
    given = for_fit(sources)
    with _naming(sources):
        envs.import_modules(given.get("imports", ()))
        envs.check(chosen["task"])
        config = _whole(sources, chosen) or defaults(**chosen, options=given)
    for number, source in enumerate(sources):
        with _naming([source]):
            config = with_defaults(config, _carried(sources[: number + 1], chosen))
    with _naming(sources):
        return complete(config)


def check_trusted_sources(sources: Sequence[Source], *, trust_env: bool) -> None:
    """Raises if a file's task or its imports would execute a module, before they do."""
    giver = next((source for source in reversed(sources) if "task" in source.values), None)
    for source in sources:
        if source.foreign:
            task = names([source])["task"] if source is giver else ""
            imports = source.values.get("imports") or ()
            envs.check_imports(imports)
            envs.check_trusted(task, source.where, trust_env=trust_env, imports=imports)


def for_fit(sources: Sequence[Source]) -> dict[str, Any]:
    """The options that the settings of an environment of one's own are fitted to, each from the last source with it.

    A source that another task than the last one belongs to has nothing to say about it.
    """
    task, found = names(sources).get("task"), dict[str, Any]()
    for number, source in enumerate(sources):
        if names(sources[: number + 1]).get("task", task) == task:
            found |= {n: source.values[n] for n in (*OF_THE_ENV, "steps", "device") if n in source.values}
    return {**found, "env_args": as_texts(found["env_args"])} if "env_args" in found else found


def _whole(sources: Sequence[Source], chosen: Mapping[str, str]) -> Config | None:
    """The last whole configuration of these names, unless a later source changes what its settings are fitted to.

    Another size is refused: it would be a word beside networks, images and paces that the configuration has all of.
    """
    for number, source in reversed(list(enumerate(sources))):
        if source.config is not None and _names_of(source.config) == chosen:
            later = {name: value for other in sources[number + 1 :] for name, value in other.values.items()}
            if not envs.env_family(chosen["task"]).own_settings and "size" in later:
                _check_same_size(source, str(later["size"] or ""))
            return None if later.keys() & {"env_args", "size"} else source.config
    return None


def _check_same_size(source: Source, size: str) -> None:
    assert source.config is not None
    if (own := source.config.size or "paper") != (size or own):
        raise InputError(
            f"size: {shown(size)} is not allowed beside {source.where}, whose networks and images are of the size "
            f"{own}; allowed: that size, or the task alone"
        )


def _carried(sources: Sequence[Source], chosen: Mapping[str, str]) -> dict[str, Any]:
    """What the last of these sources gives to a run of the chosen names."""
    source, own = sources[-1], names(sources)
    values = {name: value for name, value in source.values.items() if name not in (*NAMES, *FITTED)}
    if "env_args" in values:
        values["env_args"] = as_texts(values["env_args"])
    if own == chosen or "task" not in own or not source.where:
        return values
    if own["task"] != chosen["task"]:
        values = {name: value for name, value in values.items() if name not in OF_THE_ENV}
    kind = registry.agent_of(source.config.agent).name if source.config is not None else ""
    fitted = {name: source.values[name] for name in (*OF_THE_ENV, *FITTED) if name in source.values}
    default = defaults(**own, options=fitted, agent_kind=kind)
    with _naming([source]):
        changed = {f.name: value for f, _, value in leaves(with_defaults(default, values))}
    before = {f.name: value for f, _, value in leaves(default)}
    set_by_method = registry.method(chosen["method"]).changes if own["method"] != chosen["method"] else {}
    return {
        name: value
        for name, value in changed.items()
        if name in values and before[name] != value and name not in set_by_method
    }


def _names_of(config: Config) -> dict[str, str]:
    return {name: getattr(config, name) for name in NAMES}


@contextmanager
def _naming(sources: Sequence[Source]) -> Iterator[None]:
    """Puts the place that a refused value comes from before its error, unless it is a single option."""
    try:
        yield
    except InputError as error:
        refused = str(error).partition(":")[0].split(", ")
        givers = [source for source in sources if len(sources) == 1 or set(refused) & source.values.keys()]
        if not givers or not givers[-1].where:
            raise
        raise InputError(f"{givers[-1].where}: {error}") from None


def to_toml(config: Config) -> str:
    """The configuration as a TOML file that `from_toml` reads; an option that is None is a comment."""
    lines = ["# playvirtual train --config FILE; flags of the command line win"]
    for f in fields(config):
        value = getattr(config, f.name)
        if not is_dataclass(value):
            lines.append(_toml_line(f.name, value))
    for group in GROUPS:
        lines += ["", f"[{group}]"]
        lines += [_toml_line(f.name, value) for f, _, value in leaves(getattr(config, group))]
    return "\n".join(lines)


def _toml_line(name: str, value: Any) -> str:
    return f"# {name}: none" if value is None else f"{name} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):  # JSON's escapes are TOML's, and TOML has one more character to escape
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
