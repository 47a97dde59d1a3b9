"""grids.json of a sweep's folder: the titles and labels of the grids of one's own whose runs lie there.

A run folder does not know the label of its row: rows of several grids may share a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from playvirtual import files
from playvirtual.errors import InputError
from playvirtual.messages import logger
from playvirtual.runs.atomic_io import write_atomic

NAME = "grids.json"


class GridRow(NamedTuple):
    """The row of a grid that a run belongs to."""

    title: str  # of the grid
    label: str


def write(out: Path, name: str, title: str, runs: Sequence[tuple[Path, str]]) -> None:
    """Adds a grid to OUT/grids.json: its title, and the label of each run folder OUT/TASK/SETTING/seed-N.

    A grid of the same name that was there before gets the new title and keeps its other rows, since a sweep may be of
    some rows or tasks alone; other grids stay.
    """
    grids = _read(out)
    labels = {path.parent.relative_to(out).as_posix(): label for path, label in runs}
    before = grids.get(name, {}).get("rows", {}) if isinstance(grids.get(name), dict) else {}
    rows = {**(before if isinstance(before, dict) else {}), **labels}
    record = {**grids, name: {"title": title, "rows": rows}}
    write_atomic(out / NAME, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


class Grids:
    """The rows of the grids that runs belong to; reads each grids.json once."""

    def __init__(self) -> None:
        self._known: dict[Path, list[tuple[str, dict[str, Any]]]] = {}

    def row_of(self, run: Path) -> GridRow | None:
        """The row of a run; None if it is in no grid of one's own, or if several call it by different labels."""
        if len(run.parents) < 3:
            return None
        out, folder = run.parents[2], run.parent.relative_to(run.parents[2]).as_posix()
        if out not in self._known:
            self._known[out] = _grids(out)
        found = {GridRow(title, rows[folder]) for title, rows in self._known[out] if is_line(rows.get(folder))}
        return found.pop() if len({row.label for row in found}) == 1 else None


def _grids(out: Path) -> list[tuple[str, dict[str, Any]]]:
    """(title, folder → label) of every grid; what is no such record is left out."""
    grids = [grid for grid in _read(out).values() if isinstance(grid, dict)]
    pairs = [(grid.get("title"), grid.get("rows")) for grid in grids]
    return [(title, rows) for title, rows in pairs if is_line(title) and isinstance(rows, dict)]


def _read(out: Path) -> dict[str, Any]:
    """The content of grids.json; nothing if there is none, or none that can be read, which a message says."""
    try:
        return files.read_record(out / NAME, "grids")
    except files.Missing:
        return {}
    except InputError as error:
        logger.warning(f"{error}; titles and labels of grids are left out")
        return {}


def is_line(text: Any) -> TypeGuard[str]:
    """Whether a value of JSON is a text of one line that can be shown."""
    return isinstance(text, str) and bool(text) and text.isprintable()
