"""Commands in forks of one process, over valid runs, exports and grids that the tests make bad."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import playvirtual
from tests.waiting import HANG

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
SOURCE = Path(playvirtual.__file__).parents[1]

if not SCRIPTS.exists():
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(SCRIPTS))  # as `python benchmarks/hostile.py` has it
    try:
        hostile = import_module("hostile")
    finally:
        sys.path.remove(str(SCRIPTS))


class Commands:
    """Runs `playvirtual WORDS` in a folder of its own, beside copies of valid input."""

    def __init__(self, server: Any, originals: Path) -> None:
        self.server, self.originals = server, originals
        self.folder = originals

    def copy(self, name: str, to: str = "run") -> Path:
        """A copy of a valid run folder, export or grid under another name in the test's folder."""
        source, target = self.originals / name, self.folder / to
        return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))

    def run(self, *words: str, bound: bool = False, seconds: float = HANG) -> Any:
        """Runs a command in the test's folder; `bound`: by permissions, also as root."""
        return self.server.run(list(words), self.folder, bound=bound, seconds=seconds)

    def complaint(self, *words: str, code: int = 2, bound: bool = False) -> str:
        """The one line that a command ends with, which must have that exit code and print nothing else but messages."""
        ended = self.run(*words, bound=bound)
        lines = ended.err.splitlines()
        assert (ended.code, ended.killed) == (code, ""), ended
        assert all(line.startswith("playvirtual: ") for line in lines), ended.err
        assert [line.startswith("playvirtual: error: ") for line in lines].count(True) == 1, ended.err
        return str(lines[-1].removeprefix("playvirtual: error: "))


@pytest.fixture(scope="session")
def all_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("hostile")
    server = hostile.Server(SOURCE, folder)
    (folder / "originals").mkdir()
    hostile.make_originals(server, folder / "originals")
    yield Commands(server, folder / "originals")
    server.close()


@pytest.fixture
def commands(all_commands: Commands, tmp_path: Path) -> Commands:
    all_commands.folder = tmp_path
    return all_commands
