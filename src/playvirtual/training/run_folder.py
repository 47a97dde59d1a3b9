"""The run folder: what a run is told, measures and scores, as files that outlive it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from playvirtual.config import Config, differences, from_dict, to_dict
from playvirtual.errors import InputError
from playvirtual.training.checkpoint import sync, write_synced

JOURNALS = ("metrics", "evaluations", "timing")


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
                " (--resume goes on with it; or choose another --seed or --run-dir)"
            )

    @classmethod
    def create(cls, path: Path | str) -> RunFolder:
        """Makes a new folder; one that exists already is refused."""
        folder = cls(path)
        try:
            folder.path.mkdir(parents=True)
        except OSError as error:
            cls.refuse_existing(path)
            raise InputError(f"run_dir: {str(path)!r} cannot be made: {error.strerror}") from None
        return folder

    def describe(self, config: Config) -> None:
        """Writes config.json, whole or not at all."""
        record = {**to_dict(config), "versions": {**versions(), **_drawn_by(config.task)}}
        partial = self.path / "config.json.partial"
        try:
            write_synced(partial, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
            partial.rename(self.path / "config.json")
            sync(self.path)
        except OSError as error:
            raise InputError(f"run_dir: {str(self.path)!r} cannot be written: {error.strerror}") from None

    def adopt(self, config: Config) -> None:
        """Makes sure that this is the folder of a run with this configuration, begun or about to be."""
        if (self.path / "config.json").is_file():
            changed = differences(self.config(), config)
            if changed:
                raise InputError(
                    f"resume: {str(self.path)!r} was begun with another configuration ({'; '.join(changed)}: "
                    "there, now); allowed: the same one, or `playvirtual train --resume RUN` alone"
                )
        elif any(p.name not in ("run.lock", "config.json.partial") for p in self.path.iterdir()):
            raise InputError(f"run_dir: {str(self.path)!r} holds something else than a run; allowed: a run folder")
        else:  # killed before it had written anything
            self.describe(config)

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

    def positions(self) -> dict[str, int]:
        """How many bytes of each journal there are, all of them on the disk."""
        found = {name: self.path / f"{name}.jsonl" for name in JOURNALS}
        for file in found.values():
            if file.exists():
                sync(file)
        return {name: file.stat().st_size if file.exists() else 0 for name, file in found.items()}

    def rewind(self, positions: Mapping[str, int], evaluated: int) -> None:
        """Takes the journals back to those positions, but keeps the whole evaluation of step `evaluated`.

        An evaluation follows from its checkpoint alone: if its line is there, it need not be played again.
        """
        for name in JOURNALS:
            file, size = self.path / f"{name}.jsonl", positions.get(name, 0)
            if (file.stat().st_size if file.exists() else 0) < size:
                raise InputError(
                    f"run: {str(file)!r} is shorter than its checkpoint says; allowed: the file as written"
                )
            if not file.exists():
                continue
            if name == "evaluations":
                size += _whole_line(file.read_bytes()[size:], evaluated)
            os.truncate(file, size)

    def returns(self, step: int) -> list[float] | None:
        """The returns of the evaluation at that step, if it is there."""
        found = [line["returns"] for line in self.lines("evaluations") if line["step"] == step]
        return [float(r) for r in found[0]] if found else None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of one of those files, none if there is no such file yet."""
        file = self.path / f"{name}.jsonl"
        data = file.read_bytes() if file.exists() else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _whole_line(data: bytes, step: int) -> int:
    """The length of the first line of `data` if it is complete and of that step, else 0."""
    line, newline, _ = data.partition(b"\n")
    return len(line) + 1 if newline and json.loads(line)["step"] == step else 0


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
