"""Files that are whole and on the disk, whatever happens next."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Gives a file this content, whole or not at all: written beside its place, then renamed."""
    partial = path.with_name(path.name + ".partial")
    write_synced(partial, data)
    partial.rename(path)
    sync(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file whose content is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Puts a file's content, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
