"""Code on the pages is executed: the Python blocks of a page are one program, its TOML and its commands are read.

A block whose first line is a comment `# needs …` (a GPU, hours, a run of yours) is compiled and not executed. A comment
of HTML that begins with `python` holds lines that readers do not see and that the blocks after it need.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from playvirtual.cli.main import _parser, _unread_word
from playvirtual.errors import InputError
from playvirtual.extensions import GROUP
from tests.waiting import HANG

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TESTS = ROOT / "tests"
# Errors of a command with the reader's own run, file or environment.
NOT_HERE = re.compile(r"is not there|No such file|cannot import the module|^task: '(gym|env)/")
FENCE = re.compile(r"^(?:```(\w*)\n(.*?)^```$|<!-- (python)\n(.*?)^-->$)", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int  # of the page, before its first
    text: str

    @property
    def runs(self) -> bool:
        return not self.text.startswith("# needs ")


def blocks(page: Path, language: str) -> list[Block]:
    """Every block of code of that language."""
    text = page.read_text(encoding="utf-8")
    found = ((m, 2 if m[2] is not None else 4) for m in FENCE.finditer(text) if language in (m[1], m[3]))
    return [Block(text[: m.start(group)].count("\n"), m[group]) for m, group in found]


def program(page: Path) -> list[Block]:
    """The blocks that are executed here: none of a page that has a test of its own, as your-environment.md has."""
    if (TESTS / f"test_{page.stem.replace('-', '_')}.py").exists():
        return []
    return [block for block in blocks(page, "python") if block.runs]


def trains(page: Path) -> bool:
    return any("pv.train(" in block.text for block in program(page))


# Runs the blocks of each page as a module; errors show the page's own line numbers.
RUNNER = """
import json, sys, types
for page, blocks in json.load(sys.stdin):
    module = sys.modules["page"] = types.ModuleType("page")
    for line, block in blocks:
        exec(compile("\\n" * line + block, page, "exec"), module.__dict__)
"""


def run(pages: list[Path], folder: Path) -> None:
    """One process for all: most of the time is that of importing PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([(str(page), program(page)) for page in pages]),
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if trains(page)], ids=lambda page: page.stem)
def test_every_python_block_of_a_page_that_trains_runs(page: Path, tmp_path: Path) -> None:
    run([page], tmp_path)
    trained = {log.parent.name for log in tmp_path.rglob("evaluations.jsonl") if log.stat().st_size}
    assert trained
    if page.stem == "extending":
        assert trained == {"dqn", "calm", "guided", "corridor", "light", "method"}


@pytest.mark.slow
def test_every_python_block_of_the_other_pages_runs(tmp_path: Path) -> None:
    others = [page for page in PAGES if program(page) and not trains(page)]
    assert {"equations", "studies"} <= {page.stem for page in others}
    run(others, tmp_path)


def test_blocks_that_are_not_run_are_python_and_say_what_they_need() -> None:
    waiting = [(page, block) for page in PAGES for block in blocks(page, "python") if not block.runs]
    for page, block in waiting:
        compile("\n" * block.line + block.text, str(page), "exec")
    assert waiting


def commands(page: Path) -> list[tuple[int, str]]:
    """(line, command) of every `playvirtual …` in the page's blocks of commands; those with "…" are no whole ones."""
    found = []
    for language in ("", "bash"):
        for block in blocks(page, language):
            joined = block.text.replace("\\\n", " ")  # a command may go on in the next line
            for number, line in enumerate(joined.splitlines(), block.line + 1):
                words = re.split(r" [#|>&]", line)[0].strip()
                if words.startswith("playvirtual ") and "…" not in words:
                    found.append((number, words))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page: Path) -> None:
    for number, command in commands(page):
        words = shlex.split(command)[1:]
        try:
            parser = _parser(words)
            options, rest = parser.parse_known_args(words)
            if rest:
                raise _unread_word(parser, options, rest[0])
        except InputError as error:
            if not NOT_HERE.search(str(error)):
                pytest.fail(f"{page.name}:{number}: {command}: {error}")


def test_the_toml_blocks_of_extending_are_a_grid_and_the_entry_points_of_a_package() -> None:
    grid, package = (tomllib.loads(block.text) for block in blocks(ROOT / "docs" / "extending.md", "toml"))
    assert [row["method"] for row in grid["row"]] == ["spr", "dqn"]
    assert set(package["project"]["entry-points"]) == {GROUP}
