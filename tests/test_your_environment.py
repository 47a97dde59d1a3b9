"""docs/your-environment.md is a program: its modules, commands and Python blocks run in order, with few steps."""

from __future__ import annotations

import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import playvirtual as pv
from playvirtual.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "your-environment.md"
FEW = {"steps": 48, "learning_starts": 45, "eval_episodes": 2, "eval_every": 0, "device": "cpu", "quiet": True}
MODULES = ("my_envs", "my_plane", "my_robot", "my_buttons")


def blocks() -> list[tuple[str, int, str]]:
    """(language, line number, text) of every code block."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(block[1], text[: block.start(2)].count("\n"), block[2]) for block in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty folder that is worked in, as a reader of the page has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)
    gymnasium.registry.pop("Steer-v0", None)


@pytest.mark.slow(seconds=12)
def test_every_block_of_the_page_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pv, "train", partial(_train_briefly, pv.train))
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, line, text in blocks():
        if language == "python" and (module := re.match(r"# (\w+\.py)\n", text)):
            (folder / module[1]).write_text(text)
        elif language == "python":
            exec(compile("\n" * line + text, str(PAGE), "exec"), names)
        elif language == "sh":
            for command in text.splitlines():
                _run(shlex.split(command), capsys)
    tasks = {run.name: json.loads((run / "config.json").read_text())["task"] for run in (folder / "runs").iterdir()}
    assert tasks == {
        "room": "env/my_envs:Room",
        "room-python": "env/my_envs:Room",
        "big": "env/lambda",
        "steer": "gym/my_plane:Steer-v0",
        "steer-python": "env/my_plane:Steer",
        "compass": "env/my_robot:Compass",
        "buttons": "env/my_buttons:make",
    }
    assert list((folder / "runs" / "room" / "videos").iterdir())


def _train_briefly(train: Any, *words: Any, **options: Any) -> pv.Run:
    run: pv.Run = train(*words, **{**options, **FEW})
    return run


def _run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    program, command, *rest = words
    assert program == "playvirtual"
    given = [f"--{name.replace('_', '-')}={value}" for name, value in FEW.items() if name != "quiet"]
    brief = [*given, "--quiet"] if command == "train" else ["--episodes=1", "--device=cpu"]
    assert main([command, *rest, *brief]) == 0, (words, capsys.readouterr().err)
