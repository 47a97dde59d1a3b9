"""Checkpoints: folders that are complete or absent, read without ever running foreign code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from playvirtual.cores import share
from playvirtual.errors import InputError
from playvirtual.training.durable import sync, write_synced
from playvirtual.training.notice import say
from playvirtual.training.pack import from_bytes

KEPT = 2
MANIFEST = "manifest.json"

Content = bytes | Callable[[], bytes]


def save(run: Path, step: int, contents: Iterable[tuple[str, Content]]) -> Path:
    """Writes checkpoints/step-…: beside its place first, checksummed, synced, then renamed; keeps the last two.

    A file that the oldest of the kept ones has under the same name is linked instead of written. It is the one
    about to go: the two that stay share no file, so that no damage can reach both.
    """
    final = folder_of(run, step)
    final.parent.mkdir(exist_ok=True)  # not its parents: a run folder that is gone must not come back
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    earlier = complete(run)
    try:
        write_folder(partial, contents, reuse=earlier[0] if len(earlier) >= KEPT else None)
        shutil.rmtree(final, ignore_errors=True)  # only a damaged one can be there
        partial.rename(final)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(final.parent)
    _prune(run)
    return final


def write_folder(folder: Path, contents: Iterable[tuple[str, Content]], reuse: Path | None = None) -> None:
    """Fills an empty folder with files and their manifest, all synced."""
    known = _manifest(reuse) if reuse is not None and (reuse / MANIFEST).is_file() else {}

    def put(item: tuple[str, Content]) -> tuple[str, str]:
        """Writes one file; returns its name and checksum."""
        name, content = item
        if callable(content) and name in known and reuse is not None and _link(reuse / name, folder / name):
            return name, known[name]
        data = content() if callable(content) else content
        write_synced(folder / name, data)
        return name, hashlib.sha256(data).hexdigest()

    # Compressing, summing and syncing leave the interpreter free; a run waits for all of them.
    with ThreadPoolExecutor(share()) as threads:
        sums = dict(threads.map(put, contents))
    write_synced(folder / MANIFEST, (json.dumps(sums, indent=2) + "\n").encode())
    sync(folder)


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:09d}"


def complete(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first: what has lost its suffix was written to the end."""
    return sorted(p for p in (run / "checkpoints").glob("step-*") if not p.suffix)


def newest(run: Path) -> Path:
    """The run's newest complete checkpoint."""
    found = complete(run)
    if not found:
        raise InputError(f"run: {str(run)!r} has no checkpoint yet; allowed: a run that has reached its first one")
    return found[-1]


def newest_sound(run: Path, names: Sequence[str]) -> Path:
    """The run's newest checkpoint of which the files of these names are undamaged; says which ones are not.

    The last that is left is not looked into: whoever reads it hears what is wrong with it.
    """
    found = complete(run)
    while len(found) > 1:
        try:
            for name in names:
                read(found[-1], name)
            break
        except InputError as error:
            say(f"{error}; using the one before")
            found.pop()
    return found[-1] if found else newest(run)


def put_aside(path: Path) -> None:
    """Takes a damaged checkpoint out of the row; the next one to be written clears it away."""
    aside = path.with_name(path.name + ".damaged")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def verify(path: Path) -> None:
    """Raises an InputError that names the first damaged or missing file."""
    for name in _manifest(path):
        read(path, name)


def read(path: Path, name: str) -> bytes:
    """A file's content, after its checksum has been verified."""
    try:
        data = (path / name).read_bytes()
        expected = _manifest(path)[name]
    except (FileNotFoundError, KeyError):
        raise InputError(f"checkpoint: {str(path / name)!r} is damaged (it is missing)") from None
    except OSError as error:
        raise InputError(f"checkpoint: {str(path / name)!r} cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise InputError(f"checkpoint: {str(path / name)!r} is damaged (its checksum does not match)")
    return data


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a verified safetensors file; anything else, a pickle for one, is refused unread."""
    try:
        return from_bytes(read(path, name))
    except SafetensorError as error:
        raise InputError(f"checkpoint: {str(path / name)!r} is no safetensors file ({error})") from None


def _manifest(path: Path) -> dict[str, str]:
    try:
        sums = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError):
        raise InputError(f"checkpoint: {str(path / MANIFEST)!r} is damaged (it cannot be read)") from None
    if not isinstance(sums, dict):
        raise InputError(f"checkpoint: {str(path / MANIFEST)!r} is damaged (it is no list of checksums)")
    return sums


def _link(source: Path, target: Path) -> bool:
    """A second name for a file, if the file system has such a thing."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _prune(run: Path) -> None:
    kept = set(complete(run)[-KEPT:])
    for path in (run / "checkpoints").glob("step-*"):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
