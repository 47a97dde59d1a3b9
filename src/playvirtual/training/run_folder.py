"""The run folder: where a run lies, described by its config.json."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from playvirtual.config import Config, differences, from_dict, to_dict
from playvirtual.errors import InputError
from playvirtual.training import durable, lock


def default_path(config: Config) -> Path:
    """runs/<task>/<method>/seed-<seed>, with what distinguishes presets when it is not the default one."""
    method = config.method if config.preset == "paper" else f"{config.method}-{config.preset}"
    return Path("runs") / config.task.replace("/", "-") / method / f"seed-{config.seed}"


class RunFolder:
    """config.json, metrics.jsonl, evaluations.jsonl, timing.jsonl, checkpoints/.

    Wall-clock times have a file of their own: everything else is the same for the same seed, to the byte.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def refuse_existing(cls, path: Path | str) -> None:
        """Raises unless `path` is free for a new run: not there, or an empty folder."""
        folder = cls(path)
        if not folder.path.exists() or (folder.path.is_dir() and folder._is_empty()):
            return
        if (folder.path / "config.json").is_file():
            raise InputError(
                f"run_dir: {str(path)!r} exists already; allowed: a new folder"
                " (--resume goes on with it; or choose another --seed or --run-dir)"
            )
        what = "holds something else than a run" if folder.path.is_dir() else "is a file and not a run folder"
        raise InputError(f"run_dir: {str(path)!r} {what}; allowed: a new or an empty folder")

    def _is_empty(self) -> bool:
        """Whether no more is there than a run leaves that was killed before it had written anything."""
        try:
            return all(p.name in (lock.NAME, "config.json.partial") for p in self.path.iterdir())
        except OSError as error:
            raise InputError(f"run_dir: {str(self.path)!r} cannot be read: {error.strerror}") from None

    @classmethod
    def create(cls, path: Path | str) -> RunFolder:
        """Makes a new folder, or takes an empty one; any other is refused."""
        folder = cls(path)
        cls.refuse_existing(path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run_dir: {str(path)!r} cannot be made: {error.strerror}") from None
        return folder

    def describe(self, config: Config) -> None:
        """Writes config.json, whole or not at all."""
        record = {**to_dict(config), "versions": {**versions(), **_drawn_by(config.task)}}
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        try:
            durable.replace(self.path / "config.json", text.encode())
        except OSError as error:
            raise InputError(f"run_dir: {str(self.path)!r} cannot be written: {error.strerror}") from None

    def adopt(self, config: Config) -> None:
        """Makes sure that this is the folder of a run with this configuration, begun or about to be."""
        if (self.path / "config.json").is_file():
            changed = differences(self.config(), config)
            if changed:
                raise InputError(
                    f"resume: {str(self.path)!r} was begun with another configuration ({'; '.join(changed)}); "
                    "allowed: the same one, or `playvirtual train --resume RUN` alone"
                )
        elif not self._is_empty():
            raise InputError(f"run_dir: {str(self.path)!r} holds something else than a run; allowed: a run folder")
        else:  # killed before it had written anything
            self.describe(config)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run folder."""
        folder = cls(path)
        if not (folder.path / "config.json").is_file():
            there = folder.path.exists()
            what = "is not a run folder (it has no config.json)" if there else "is not there"
            raise InputError(f"run: {str(path)!r} {what}; allowed: a folder that `playvirtual train` wrote")
        return folder

    @property
    def is_export(self) -> bool:
        """Whether it holds an agent's weights alone, which cannot go on learning."""
        return (self.path / "weights.safetensors").is_file()

    def config(self) -> Config:
        """The configuration the run was made with."""
        file = str(self.path / "config.json")
        try:
            return from_dict(self.record())
        except InputError as error:
            raise InputError(f"run: {file!r}: {str(error).removeprefix('config.json: ')}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"run: {file!r} cannot be read: {error}") from None

    def record(self) -> dict[str, Any]:
        """What config.json says, be it of another version; an OSError or a ValueError if it cannot be read."""
        record = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError("config.json is not a record")
        return record


def _drawn_by(task: str) -> dict[str, str]:
    """The OpenGL back end where one draws the pixels: they differ by a shade between back ends."""
    if not task.startswith("dmc/"):
        return {}
    from playvirtual.envs.gl import backend

    return {"gl": backend()}


def versions() -> dict[str, str]:
    """The versions of what decides a run's numbers."""
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
