"""docs/extending.md is a program: its Python blocks run in order, its TOML blocks are what the project reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from playvirtual.extensions import GROUP
from tests.waiting import HANG

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def blocks(language: str, page: Path = PAGE) -> list[tuple[int, str]]:
    """(line number, text) of every code block of that language."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start(1)].count("\n"), block[1]) for block in found]


# Runs the blocks as one module; errors show the page's own line numbers.
RUNNER = """
import json, sys, types
page, blocks = sys.argv[1], json.load(sys.stdin)
module = sys.modules["extending"] = types.ModuleType("extending")
for line, block in blocks:
    exec(compile("\\n" * line + block, page, "exec"), module.__dict__)
"""


@pytest.mark.slow
def test_every_python_block_of_the_page_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(PAGE)],
        input=json.dumps(blocks("python")),
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    trained = {path.name for path in (tmp_path / "runs").iterdir() if (path / "evaluations.jsonl").stat().st_size}
    assert trained == {"dqn", "guided", "corridor", "light", "method"}


def test_the_toml_blocks_are_a_grid_and_the_entry_points_of_a_package() -> None:
    grid, package = (tomllib.loads(block) for _, block in blocks("toml"))
    assert [row["method"] for row in grid["row"]] == ["spr", "dqn"]
    assert set(package["project"]["entry-points"]) == {GROUP}
