"""The run folder: its place, and the config.json that describes it."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from playvirtual import envs, files
from playvirtual.config.record import differences, from_dict, to_dict
from playvirtual.config.schema import Config
from playvirtual.errors import InputError, closest, shown, unknown
from playvirtual.files import Unreadable
from playvirtual.runs import checkpoint
from playvirtual.runs.atomic_io import LOCK, make_folder, write_atomic

CONFIG = "config.json"
BUILTIN_PREFIX = "playvirtual/"  # of the names of the agents that come with the package
MOST_LOOKED_INTO = 200  # folders, and entries of each, where a run is looked for that was meant
BUILTIN = Path(__file__).parents[1] / "trained"


def builtin_agents() -> dict[str, Path]:
    """The agents that come with the package: name, as in "playvirtual/toy-catch", and folder."""
    names = [name for name in files.listed(BUILTIN, "trained") if files.is_file(BUILTIN / name / CONFIG, "trained")]
    return {f"{BUILTIN_PREFIX}{name}": BUILTIN / name for name in names}


def default_path(config: Config) -> Path:
    """runs/<task>/<method>/seed-<seed>; the method with its preset unless that is the default."""
    method = config.method if config.preset == "paper" else f"{config.method}-{config.preset}"
    return Path("runs") / config.task.replace("/", "-") / method / f"seed-{config.seed}"


def _run_below(folder: Path) -> Path | None:
    """The first run folder below one that is none, as runs/toy-catch/playvirtual/seed-1 below runs."""
    waiting = [folder]
    for _ in range(MOST_LOOKED_INTO):
        if not waiting:
            break
        current = waiting.pop(0)
        try:
            with os.scandir(current) as found:
                entries = sorted(islice(found, MOST_LOOKED_INTO), key=lambda entry: entry.name)
            if any(entry.name == CONFIG and entry.is_file() for entry in entries):
                return current
            waiting += [current / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # it cannot be read, or is gone
            continue
    return None


def _run_above(path: Path) -> Path | None:
    """The run folder that a file or folder of it was given for, as runs/mine for runs/mine/checkpoints/step-100."""
    return next((folder for folder in islice(path.parents, 2) if files.is_file(folder / CONFIG, "run")), None)


def _builtin_meant(name: str) -> str | None:
    """The built-in agent whose name was given without its beginning, or as its task, or nearly so."""
    names = [full.removeprefix(BUILTIN_PREFIX) for full in builtin_agents()]
    meant = closest(name.replace("/", "-"), names)
    return f"{BUILTIN_PREFIX}{meant}" if meant else None


def _run_beside(path: Path) -> Path | None:
    """The run folder, or the first one below a folder, whose name is nearly that of a path that is not there."""
    beside = files.nearest(path)
    return _run_below(beside) if beside is not None else None


class RunFolder:
    """A folder with config.json, metrics.jsonl, evaluations.jsonl, timing.jsonl and checkpoints/.

    Wall-clock times have a file of their own: all the others are byte-identical for the same seed on the CPU.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def refuse_existing(cls, path: Path | str) -> None:
        """Raises unless `path` can be used for a new run: it does not exist, or is an empty folder."""
        folder = cls(path)
        found = files.kind(folder.path, "run_dir")
        if found is None or (found == "folder" and folder._is_empty()):
            return
        if folder._has_config("run_dir"):
            raise InputError(
                f"run_dir: {str(path)!r} exists already; allowed: a new folder"
                " (--resume resumes it; or choose another --seed or --run-dir)"
            )
        what = "contains something other than a run" if found == "folder" else "is a file and not a run folder"
        raise InputError(f"run_dir: {str(path)!r} {what}; allowed: a new or an empty folder")

    def _has_config(self, field: str) -> bool:
        return files.is_file(self.path / CONFIG, field)

    def _is_empty(self) -> bool:
        """Whether it has nothing, or only what a run leaves that was killed before it wrote its configuration."""
        return all(name in (LOCK, "config.json.partial") for name in files.listed(self.path, "run_dir"))

    @classmethod
    def create(cls, path: Path | str) -> RunFolder:
        """Makes a new folder, or uses an empty one; any other is refused."""
        folder = cls(path)
        cls.refuse_existing(path)
        try:
            make_folder(folder.path)
        except OSError as error:
            raise InputError(f"run_dir: {shown(path)} cannot be made: {error.strerror}") from None
        return folder

    def write_config(self, config: Config) -> None:
        """Writes config.json, completely or not at all."""
        self._write_record({**to_dict(config), "versions": {**versions(), **_renderer(config.task)}})

    def _write_record(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        try:
            write_atomic(self.path / CONFIG, text.encode())
        except OSError as error:
            raise InputError(f"run_dir: {str(self.path)!r} cannot be written: {error.strerror}") from None

    def check_same_config(self, config: Config) -> None:
        """Raises unless this is the folder of a run with this configuration; an empty folder gets its config.json.

        What may differ beside the device is `stop_at_score`, and `steps` where there are more of them.
        """
        if self._has_config("run_dir"):
            own = self.config()
            changed = differences(own, config, ("stop_at_score", *(["steps"] if config.steps > own.steps else [])))
            if changed:
                raise InputError(
                    f"resume: {str(self.path)!r} was started with another configuration ({'; '.join(changed)}); "
                    "allowed: the same one, more steps, or `playvirtual train --resume RUN` alone"
                )
        elif not self._is_empty():
            raise InputError(f"run_dir: {str(self.path)!r} contains something other than a run; allowed: a run folder")
        else:  # the run was killed before it wrote its configuration
            self.write_config(config)

    def record_changes(self, config: Config, step: int) -> None:
        """Writes `steps` and `stop_at_score` into config.json, where `extended` lists every change of the steps.

        `step` is the step after which the run resumes.
        """
        record, own = self.record(), self.config()
        if (own.steps, own.stop_at_score) == (config.steps, config.stop_at_score):
            return
        record |= {"steps": config.steps, "stop_at_score": config.stop_at_score}
        if own.steps != config.steps:
            before = record["extended"] if isinstance(record.get("extended"), list) else []
            extension = {"at": step, "from": own.steps, "to": config.steps, "versions": versions()}
            record["extended"] = [*before, extension]
        self._write_record(record)

    @classmethod
    def open(cls, path: Path | str, field: str = "run") -> RunFolder:
        """An existing run folder, or a built-in agent by its name; `field` names the option in the error."""
        folder = cls(builtin_agents().get(str(path), path) if files.kind(Path(path), "run") is None else path)
        if not folder._has_config("run"):
            there = files.kind(folder.path, "run") is not None
            if not there and str(path).startswith(BUILTIN_PREFIX):
                raise unknown("agent", str(path), builtin_agents())
            what = "is not a run folder (it has no config.json)" if there else "is not there"
            if there:
                meant: Path | str | None = _run_above(folder.path) or _run_below(folder.path)
            else:
                meant = _run_beside(folder.path) or _builtin_meant(str(path))
            hint = f"did you mean {shown(meant)}? " if meant else ""
            raise InputError(
                f"{field}: {shown(str(path))} {what}; {hint}"
                "allowed: a folder that `playvirtual train` or `export` wrote"
            )
        return folder

    @property
    def videos(self) -> Path:
        """Where films of the agent go: beside its files; of a built-in one, into the present folder."""
        return Path("videos") if self.path.parent == BUILTIN else self.path / "videos"

    @property
    def is_export(self) -> bool:
        """Whether it has policy weights alone, which cannot be trained further."""
        return files.is_file(self.path / "weights.safetensors", "run")

    def config(self) -> Config:
        """The configuration the run was made with."""
        record = self.record()
        try:
            return from_dict(record)
        except InputError as error:
            raise InputError(f"run: {str(self.path / CONFIG)!r}: {str(error).removeprefix('config.json: ')}") from None

    def trusted_config(self, *, trust_env: bool, makes_env: bool = True) -> Config:
        """The configuration, once the modules that it names are imported.

        That executes them: unless the user has named or imported them, it takes `trust_env`, the user's word. Without
        `makes_env` the module of the task is not asked about, since the caller has an environment.
        """
        record, where = self.record(), f"the run folder {str(self.path)!r}"
        task, imports = record.get("task", ""), record.get("imports", ())
        if isinstance(task, str) and isinstance(imports, list | tuple):  # else `config` says what is wrong
            envs.check_imports(imports)
            envs.check_trusted(task if makes_env else "", where, trust_env=trust_env, imports=imports)
            envs.import_modules(imports)
        return self.config()

    def record(self) -> dict[str, Any]:
        """The content of config.json, whose values are unchecked; in an export it must have its checksum."""
        if not self.is_export:
            return files.read_record(self.path / CONFIG, "run")
        try:
            return files.as_record(files.parse_json(checkpoint.read(self.path, CONFIG)))
        except InputError:
            raise
        except ValueError as error:
            raise Unreadable("run", self.path / CONFIG, str(error)) from None


def _renderer(task: str) -> dict[str, str]:
    """The OpenGL back end where one renders the observations, which differ slightly between back ends."""
    if not task.startswith("dmc/"):
        return {}
    from playvirtual.envs.families.gl import backend

    return {"gl": backend()}


def versions() -> dict[str, str]:
    """The versions of the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for package in (
        "playvirtual",
        "torch",
        "numpy",
        "gymnasium",
        "ale-py",
        "minatar",
        "dm-control",
        "mujoco",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
