"""Checkpoints: folders that are complete or absent, with checksums, read without ever unpickling anything."""

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

from playvirtual.device import own_cores
from playvirtual.errors import InputError
from playvirtual.messages import logger
from playvirtual.runs.atomic_io import fsync, write_synced
from playvirtual.runs.state import from_bytes

KEPT = 2
MANIFEST = "manifest.json"

Content = bytes | Callable[[], bytes]


def save(run: Path, step: int, contents: Iterable[tuple[str, Content]]) -> Path:
    """Writes checkpoints/step-…: under another name first, checksummed, synced, then renamed; keeps the last two.

    A file that the older of the two present checkpoints has under the same name is linked instead of written. That
    checkpoint is about to be removed: the two that stay share no file, so that no damage can reach both.
    """
    final = checkpoint_path(run, step)
    if not final.parent.is_dir():
        final.parent.mkdir()  # not its parents: a run folder that was removed must not come back
        fsync(run)
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    earlier = complete(run)
    try:
        write_folder(partial, contents, reuse=earlier[0] if len(earlier) >= KEPT else None)
        shutil.rmtree(final, ignore_errors=True)  # only a damaged one can exist
        partial.rename(final)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for path in complete(run)[:-KEPT]:
        path.rename(path.with_name(path.name + ".removed"))  # while its files go, it must not count as complete
    fsync(final.parent)
    _remove_incomplete(run)
    return final


def write_folder(folder: Path, contents: Iterable[tuple[str, Content]], reuse: Path | None = None) -> None:
    """Writes files and their manifest into an empty folder, all synced."""
    known = _manifest(reuse) if reuse is not None and (reuse / MANIFEST).is_file() else {}

    def put(item: tuple[str, Content]) -> tuple[str, str]:
        """Writes one file; returns its name and checksum."""
        name, content = item
        if callable(content) and name in known and reuse is not None and _link(reuse / name, folder / name):
            return name, known[name]
        data = content() if callable(content) else content
        write_synced(folder / name, data)
        return name, hashlib.sha256(data).hexdigest()

    # Compression, checksums and fsync release the interpreter; the run waits for all of them.
    with ThreadPoolExecutor(own_cores()) as threads:
        sums = dict(threads.map(put, contents))
    write_synced(folder / MANIFEST, (json.dumps(sums, indent=2) + "\n").encode())
    fsync(folder)


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:09d}"


def complete(run: Path) -> list[Path]:
    """The run's complete checkpoints, oldest first: an incomplete one has a suffix."""
    return sorted(p for p in (run / "checkpoints").glob("step-*") if not p.suffix)


def newest(run: Path) -> Path:
    """The run's newest complete checkpoint."""
    found = complete(run)
    if not found:
        raise InputError(f"run: {str(run)!r} has no checkpoint yet; allowed: a run that has reached its first one")
    return found[-1]


def latest_valid(run: Path, names: Sequence[str]) -> Path:
    """The run's newest checkpoint whose files of these names are undamaged; logs which checkpoints are damaged.

    The oldest checkpoint is returned unverified: reading it raises what is wrong with it.
    """
    found = complete(run)
    while len(found) > 1:
        try:
            for name in names:
                read(found[-1], name)
            break
        except InputError as error:
            logger.warning(f"{error}; using the one before")
            found.pop()
    return found[-1] if found else newest(run)


def quarantine(path: Path) -> None:
    """Renames a damaged checkpoint so that it no longer counts; the next `save` removes it."""
    renamed = path.with_name(path.name + ".damaged")
    shutil.rmtree(renamed, ignore_errors=True)
    path.rename(renamed)


def verify(path: Path) -> None:
    """Raises an InputError that names the first damaged or missing file, if there is one."""
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
    """The tensors of a verified safetensors file; anything else, such as a pickle, is refused unread."""
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
    """Makes a hard link; False where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _remove_incomplete(run: Path) -> None:
    """Removes everything in checkpoints/ that is no complete checkpoint: partial, damaged and removed ones."""
    kept = set(complete(run))
    for path in (run / "checkpoints").glob("step-*"):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
