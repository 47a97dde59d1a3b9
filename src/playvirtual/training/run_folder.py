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
from playvirtual.training import durable, lock

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
            raise InputError(
                f"run: {str(path)!r} is not a run folder (it has no config.json); allowed: a folder that "
                "`playvirtual train` wrote"
            )
        return folder

    @property
    def is_export(self) -> bool:
        """Whether it holds an agent's weights alone, which cannot go on learning."""
        return (self.path / "weights.safetensors").is_file()

    def config(self) -> Config:
        """The configuration the run was made with."""
        path = self.path / "config.json"
        try:
            return from_dict(json.loads(path.read_text(encoding="utf-8")))
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"run: {str(path)!r} cannot be read: {error}") from None

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Adds one JSON line to metrics.jsonl, evaluations.jsonl or timing.jsonl."""
        with (self.path / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def positions(self) -> dict[str, int]:
        """How many bytes of each journal there are, all of them on the disk."""
        found = {name: self.path / f"{name}.jsonl" for name in JOURNALS}
        for file in found.values():
            if file.exists():
                durable.sync(file)
        return {name: file.stat().st_size if file.exists() else 0 for name, file in found.items()}

    def rewind(self, positions: Mapping[str, int], step: int) -> list[str]:
        """Takes the journals back to the positions of a checkpoint, but keeps the whole evaluation of its `step`.

        An evaluation follows from its checkpoint alone: if its line is there, it need not be played again. A journal
        that is not what the checkpoint was made beside keeps its whole lines; the answer says so, in a line each.
        """
        return [said for name in JOURNALS if (said := self._rewind(name, positions.get(name, 0), step))]

    def _rewind(self, name: str, size: int, step: int) -> str:
        """Takes one journal back; says what is wrong with it, if anything is."""
        file = self.path / f"{name}.jsonl"
        data = file.read_bytes() if file.exists() else b""
        kept = data[:size].splitlines(keepends=True)
        if name == "evaluations":
            kept += [line for line in data[size:].splitlines(keepends=True)[:1] if _step(line) == step]
        if len(data) >= size and all(_reached(line, step) for line in kept):
            if file.exists():
                os.truncate(file, sum(map(len, kept)))
            return ""
        kept = [line for line in data.splitlines(keepends=True) if _reached(line, step)]
        aside = file.with_name(f"{file.name}.damaged")
        durable.write_synced(aside, data)
        durable.replace(file, b"".join(kept))
        return (
            f"{file} is damaged: it is not what the checkpoint was written beside; its {len(kept)} whole lines up to "
            f"step {step} stay, all others are lost (as it was: {aside.name})"
        )

    def returns(self, step: int) -> list[float] | None:
        """The returns of the evaluation at that step, if it is there."""
        found = [line.get("returns") for line in self.lines("evaluations") if line["step"] == step]
        return [float(r) for r in found[0]] if found and isinstance(found[0], list) else None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of one of those files, none if there is no such file yet; damaged ones are left out."""
        file = self.path / f"{name}.jsonl"
        data = file.read_bytes() if file.exists() else b""
        return [record for line in data.splitlines(keepends=True) if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    """What a journal's line says; None unless it is whole and names its step."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _step(line: bytes) -> int | None:
    """The step that a line is of; None if it is damaged."""
    record = _record(line)
    return None if record is None else int(record["step"])


def _reached(line: bytes, step: int) -> bool:
    """Whether a line is whole and of no later step."""
    of = _step(line)
    return of is not None and of <= step


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
