"""The run folder: what a run is told, measures and scores, as files that outlive it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from playvirtual.config import Config, from_dict, to_dict
from playvirtual.errors import InputError


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

    @staticmethod
    def refuse_existing(path: Path | str) -> None:
        """Raises unless `path` is free for a new run."""
        if Path(path).exists():
            raise InputError(
                f"run_dir: {str(path)!r} exists already; allowed: a new folder"
                " (choose another --seed or --run-dir, or remove it)"
            )

    @classmethod
    def create(cls, path: Path | str, config: Config) -> RunFolder:
        """Makes a new folder; one that exists already is refused."""
        cls.refuse_existing(path)
        folder = cls(path)
        folder.path.mkdir(parents=True)
        record = {**to_dict(config), "versions": versions()}
        (folder.path / "config.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run folder."""
        folder = cls(path)
        if not (folder.path / "config.json").is_file():
            raise InputError(
                f"run: {str(path)!r} is not a run folder (it has no config.json); allowed: a folder that "
                "`playvirtual train` wrote"
            )
        return folder

    def config(self) -> Config:
        """The configuration the run was made with."""
        try:
            return from_dict(json.loads((self.path / "config.json").read_text()))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"run: {str(self.path / 'config.json')!r} cannot be read: {error}") from None

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Adds one JSON line to metrics.jsonl, evaluations.jsonl or timing.jsonl."""
        with (self.path / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """All lines of one of those files, none if there is no such file yet."""
        file = self.path / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


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
