"""Checkpoints: folders that are complete or absent, with checksums, read without ever unpickling anything."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from playvirtual import files
from playvirtual.device import own_cores
from playvirtual.errors import InputError
from playvirtual.files import Missing, Unreadable
from playvirtual.messages import logger
from playvirtual.runs.atomic_io import fsync, write_synced
from playvirtual.runs.state import from_bytes

KEPT = 2  # complete checkpoints of a run
MANIFEST = "manifest.json"  # file name → SHA-256

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
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for path in complete(run)[:-KEPT]:
        path.rename(path.with_name(path.name + ".removed"))  # while its files go, it must not count as complete
    fsync(final.parent)
    _remove_incomplete(run)
    return final


def write_folder(folder: Path, contents: Iterable[tuple[str, Content]], reuse: Path | None = None) -> None:
    """Writes files and their manifest into an empty folder, all synced."""
    known: dict[str, str] = {}
    if reuse is not None:
        with suppress(InputError):  # nothing of a damaged checkpoint is used again
            known = _manifest(reuse)

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


def write_new_folder(folder: Path, contents: Iterable[tuple[str, Content]]) -> None:
    """Makes a folder, and its parents, with these files and their manifest; if that fails, nothing is left behind."""
    new = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        for path in reversed(new):
            path.mkdir()
        write_folder(folder, contents)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for path in new[1:]:
            with suppress(OSError):  # another process has put something there
                path.rmdir()
        raise


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:09d}"


def complete(run: Path) -> list[Path]:
    """The run's complete checkpoints, oldest first: an incomplete one has a suffix.

    A folder of checkpoints that cannot be listed is an error: taken for empty, a run would start again over its logs.
    """
    names = [name for name in files.listed(run / "checkpoints", "checkpoints") if re.fullmatch(r"step-\d{9,18}", name)]
    return [run / "checkpoints" / name for name in sorted(names, key=lambda name: int(name[5:]))]


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
        data = files.read(path / name, "checkpoint")
        expected = _manifest(path)[name]
    except (Missing, KeyError):
        raise InputError(f"checkpoint: {str(path / name)!r} is damaged (it is missing)") from None
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
    """The checksum of every file of a checkpoint; an InputError if their list is damaged."""
    try:
        sums = files.read_record(path / MANIFEST, "checkpoint")
    except Unreadable as error:
        if error.refused and not isinstance(error, Missing):
            raise
        raise InputError(f"checkpoint: {str(path / MANIFEST)!r} is damaged (it cannot be read)") from None
    names = [name for name, value in sums.items() if not isinstance(value, str) or os.sep in name or name in ("", "..")]
    if names:
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
    kept = {path.name for path in complete(run)}
    for name in files.listed(run / "checkpoints", "checkpoints"):
        if re.fullmatch(r"step-\d{9,18}(\.\w+)?", name) and name not in kept:
            shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
