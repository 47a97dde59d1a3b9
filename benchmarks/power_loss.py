"""Loses power at every moment of a run, as far as files can tell, and resumes each time.

    python benchmarks/power_loss.py                 # every moment of a short run
    python benchmarks/power_loss.py --resume 50     # every moment is verified, 50 of them are resumed

One short run is recorded: every file that is made, written, synced, linked, renamed, truncated or removed, and every
folder that is synced. Then each prefix of that record is turned into the folders that a power failure may leave:

- "dropped": nothing that was not synced is there, neither content nor entries of folders;
- "entries": the entries of folders are there, but content that was not synced is not (files are empty or older);
- "kept": everything is there, as after a kill; a file that was being written has half of its content.

In each of them, a checkpoint whose saving had ended must be there or a newer one, every complete checkpoint must be
undamaged and fit the logs, and the run must resume and end with the bytes of the recorded run.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from script import Parser, run, whole

import playvirtual as pv
from playvirtual.messages import logger
from playvirtual.runs import checkpoint, jsonl
from playvirtual.runs.agents import STATE_TREE
from playvirtual.runs.atomic_io import LOCK

OPTIONS: dict[str, Any] = {
    **{"task": "toy/catch", "steps": 120, "learning_starts": 40, "K": 2, "batch_size": 8, "device": "cpu"},
    **{"checkpoint_every": 20, "log_every": 10, "eval_every": 60, "eval_episodes": 2, "quiet": True},
}
RESULTS = ("metrics.jsonl", "evaluations.jsonl")
RUN = "study/run"
WAYS = ("dropped", "entries", "kept")


@dataclass
class Inode:
    """A file or a folder as it is, and as it is on the disk for certain."""

    entries: dict[str, Inode] | None = None  # of a folder
    durable_entries: dict[str, Inode] = field(default_factory=dict)
    content: bytes = b""
    durable_content: bytes = b""

    def sync(self) -> None:
        """What fsync does: a file's content, or a folder's own entries, and nothing else."""
        if self.entries is None:
            self.durable_content = self.content
        else:
            self.durable_entries = dict(self.entries)


class Disk:
    """The model of a file system to which a record is applied, operation by operation."""

    def __init__(self) -> None:
        self.root = Inode(entries={})

    def find(self, path: str) -> Inode:
        inode = self.root
        for name in Path(path).parts:
            inode = (inode.entries or {})[name]
        return inode

    def apply(self, operation: tuple[Any, ...]) -> None:
        """Applies one operation of a record."""
        kind, path, *rest = operation
        if kind == "promise":
            return
        if kind == "sync":
            return self.find(path).sync()
        if kind == "write":
            self.find(path).content = rest[0]
            return
        parent, name = self._parent(path), Path(path).name
        if kind == "make folder":
            parent[name] = Inode(entries={})
        elif kind == "make file":
            parent[name] = Inode()
        elif kind == "link":
            parent[name] = self.find(rest[0])
        elif kind == "rename":
            self._parent(rest[0])[Path(rest[0]).name] = parent.pop(name)
        elif kind == "remove":
            del parent[name]
        else:
            raise ValueError(kind)

    def _parent(self, path: str) -> dict[str, Inode]:
        entries = self.find(str(Path(path).parent)).entries
        assert entries is not None, path
        return entries

    def after_power_loss(self, way: str) -> dict[str, bytes | None]:
        """The paths that are there, with the contents of files and None for folders."""
        found: dict[str, bytes | None] = {}

        def walk(inode: Inode, path: Path) -> None:
            entries = inode.durable_entries if way == "dropped" else inode.entries or {}
            for name, child in entries.items():
                if child.entries is not None:
                    found[str(path / name)] = None
                    walk(child, path / name)
                else:
                    found[str(path / name)] = child.content if way == "kept" else child.durable_content

        walk(self.root, Path())
        return found


class Recorder:
    """Records what happens to files and folders below `root` while its block is entered."""

    def __init__(self, root: Path) -> None:
        self.root, self.operations = root, list[tuple[Any, ...]]()
        self._lock = threading.RLock()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Replaces the functions of `os` and `io` that change files, for all threads of this process."""
        opening = self._opening(io.open)
        replaced = {
            "fsync": self._fsync(os.fsync),
            "open": self._os_open(os.open),
            "mkdir": self._noting(os.mkdir, "make folder"),
            "unlink": self._noting(os.unlink, "remove"),
            "remove": self._noting(os.remove, "remove"),
            "rmdir": self._noting(os.rmdir, "remove"),
            "rename": self._moving(os.rename),
            "replace": self._moving(os.replace),
            "link": self._linking(os.link),
            "truncate": self._truncating(os.truncate),
        }
        with patch.object(io, "open", opening), patch.object(builtins, "open", opening), patch.multiple(os, **replaced):
            yield

    def promise(self, step: int) -> None:
        """Notes that from here on a checkpoint of this step, or a newer one, must survive."""
        self._note("promise", "", step)

    def _note(self, *operation: Any) -> None:
        with self._lock:
            self.operations.append(operation)

    def _inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path relative to the root; None if it is elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / path
        whole = Path(os.path.abspath(path))
        return str(whole.relative_to(self.root)) if whole.is_relative_to(self.root) else None

    def _note_content(self, path: str) -> None:
        """Notes a file's content; a file that is written at once is also seen with half of it."""
        with self._lock, self._original_open(self.root / path, "rb") as file:
            content = file.read()
            before = next((o[2] for o in reversed(self.operations) if o[:2] == ("write", path)), b"")
            if content != before:
                grown = content[len(before) :] if content.startswith(before) else content
                kept = content[: len(content) - len(grown)]
                self.operations += [("write", path, kept + grown[: len(grown) // 2]), ("write", path, content)]

    _original_open = staticmethod(io.open)

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            path = None if isinstance(file, int) or not set(mode) & set("wax+") else self._inside(file)
            if path is None:
                return original(file, mode, *rest, **options)
            with self._lock:
                existed = (self.root / path).exists()
                opened = original(file, mode, *rest, **options)
                if not existed:
                    self._note("make file", path)
                elif "w" in mode:
                    self._note("write", path, b"")
            return _Watched(opened, lambda: self._note_content(path))

        return opening

    def _os_open(self, original: Callable[..., int]) -> Callable[..., int]:
        def opening(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            inside = self._inside(path, dir_fd) if flags & os.O_CREAT else None
            with self._lock:
                existed = inside is None or (self.root / inside).exists()
                descriptor = original(path, flags, mode, dir_fd=dir_fd)
                if not existed:
                    self._note("make file", inside)
            return descriptor

        return opening

    def _fsync(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            path = self._inside(descriptor)
            if path is not None:
                if (self.root / path).is_file():
                    self._note_content(path)
                self._note("sync", path)
            original(descriptor)  # so that a disk that fails still fails

        return fsync

    def _noting(self, original: Callable[..., None], kind: str) -> Callable[..., None]:
        def noting(path: Any, *rest: Any, dir_fd: int | None = None) -> None:
            with self._lock:
                original(path, *rest, dir_fd=dir_fd)
                if (inside := self._inside(path, dir_fd)) is not None:
                    self._note(kind, inside)

        return noting

    def _moving(self, original: Callable[..., None]) -> Callable[..., None]:
        def moving(source: Any, target: Any, **options: Any) -> None:
            with self._lock:
                original(source, target, **options)
                if (inside := self._inside(source)) is not None:
                    self._note("rename", inside, self._inside(target))

        return moving

    def _linking(self, original: Callable[..., None]) -> Callable[..., None]:
        def linking(source: Any, target: Any, **options: Any) -> None:
            with self._lock:
                original(source, target, **options)
                if (inside := self._inside(target)) is not None:
                    self._note("link", inside, self._inside(source))

        return linking

    def _truncating(self, original: Callable[..., None]) -> Callable[..., None]:
        def truncating(path: Any, length: int) -> None:
            with self._lock:
                original(path, length)
                if (inside := self._inside(path)) is not None:
                    self._note_content(inside)

        return truncating


class _Watched:
    """A file that is open for writing and calls a function after it was closed."""

    def __init__(self, file: Any, closed: Callable[[], None]) -> None:
        self._file, self._closed = file, closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._closed()


def record(folder: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Trains a run in folder/study/run and returns all that happened to files."""
    recorder = Recorder(folder)
    saving = checkpoint.save

    def save(path: Path, step: int, contents: Any) -> Path:
        made = saving(path, step, contents)
        recorder.promise(step)
        return made

    with recorder.recording(), patch.object(checkpoint, "save", save):
        pv.train(**{**OPTIONS, **options}, run_dir=folder / RUN, resume=True)
    return recorder.operations


@dataclass
class Moment:
    """What a power failure after `number` operations may leave, and what was promised by then."""

    number: int
    way: str
    content: dict[str, bytes | None]
    promised: int  # the step of the last checkpoint whose saving had ended; -1 for none
    name: str  # the last operation

    def write(self, folder: Path) -> None:
        """Makes the folders and files of this moment in an empty folder."""
        for path, content in self.content.items():
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)

    def digest(self) -> str:
        """Equal for moments whose folders are equal; what the lock holds does not count."""
        found = {p: None if c is None else hashlib.sha256(c).hexdigest() for p, c in self.content.items()}
        return json.dumps([self.promised, sorted((p, c) for p, c in found.items() if not p.endswith(LOCK))])


def moments(operations: list[tuple[Any, ...]]) -> Iterator[Moment]:
    """Every moment of a record in all three ways; equal ones once."""
    disk, promised, seen = Disk(), -1, set[str]()
    for number, operation in enumerate(operations, 1):
        disk.apply(operation)
        if operation[0] == "promise":
            promised = operation[2]
        for way in WAYS:
            moment = Moment(number, way, disk.after_power_loss(way), promised, " ".join(map(str, operation[:2])))
            if (digest := moment.digest()) not in seen:
                seen.add(digest)
                yield moment


def broken_promises(run: Path, promised: int, whole: Path) -> list[str]:
    """What is wrong with the folder, before anything resumes it; `whole` is the undisturbed run."""
    if not run.is_dir():
        return [f"the run folder is gone, with the checkpoint of step {promised}"] if promised >= 0 else []
    found = checkpoint.complete(run)
    problems = []
    if promised >= 0 and not (found and found[-1].name >= checkpoint.checkpoint_path(run, promised).name):
        problems.append(f"the checkpoint of step {promised} is gone; there are {[path.name for path in found]}")
    for path in found:
        try:
            checkpoint.verify(path)
            positions = json.loads(checkpoint.read(path, STATE_TREE))["positions"]
        except pv.InputError as error:
            problems.append(str(error))
            continue
        for name in jsonl.NAMES:
            there = (run / f"{name}.jsonl").read_bytes() if (run / f"{name}.jsonl").exists() else b""
            if len(there) < positions[name]:
                problems.append(f"{path.name} wants {positions[name]} bytes of {name}.jsonl; there are {len(there)}")
            if name != "timing" and not (whole / f"{name}.jsonl").read_bytes().startswith(there[: positions[name]]):
                problems.append(f"{name}.jsonl has other bytes before {path.name}")
    if promised >= 0 and not (run / "config.json").is_file():
        problems.append("config.json is gone")
    return problems


def resumes_equal(run: Path, whole: Path, **options: Any) -> list[str]:
    """Resumes the run and compares it with the undisturbed one."""
    try:
        pv.train(**{**OPTIONS, **options}, run_dir=run, resume=True)
    except (pv.InputError, pv.RunError) as error:
        return [f"cannot be resumed: {error}"]
    return [f"{name} differs" for name in RESULTS if (run / name).read_bytes() != (whole / name).read_bytes()]


def main() -> int:
    """Prints one line per broken promise and one with the counts; the exit code is 1 if a promise is broken."""
    parser = Parser(__doc__)
    parser.add_argument("--resume", type=whole(0), default=0, help="how many moments are resumed (default: 0, all)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the choice of moments (default: 0)")
    options = parser.parse_args()
    logger.setLevel("ERROR")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder) / "whole"
        undisturbed.mkdir()
        operations = record(undisturbed)
        found = list(moments(operations))
        chosen = set(range(len(found)))
        if options.resume:
            chosen = set(random.Random(options.seed).sample(sorted(chosen), min(options.resume, len(found))))
        broken = 0
        for number, moment in enumerate(found):
            place = Path(folder) / f"{number}"
            place.mkdir()
            moment.write(place)
            problems = broken_promises(place / RUN, moment.promised, undisturbed / RUN)
            if number in chosen:
                problems += resumes_equal(place / RUN, undisturbed / RUN)
            for problem in problems:
                print(f"after operation {moment.number} ({moment.name}), {moment.way}: {problem}", flush=True)
            broken += bool(problems)
    print(
        f"{len(operations)} operations, {len(found)} different folders after a power failure, {len(chosen)} resumed: "
        f"{broken} broken; {time.monotonic() - began:.0f} s"
    )
    return int(bool(broken))


if __name__ == "__main__":
    run(main)
