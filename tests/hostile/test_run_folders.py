"""Run folders, exports and checkpoints that are unreadable, rotten, forged or foreign."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import Commands
from tests.training.damage import replace

pytestmark = pytest.mark.slow(seconds=2)

LOGS = ("metrics.jsonl", "evaluations.jsonl", "timing.jsonl")


def logs(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in LOGS}


def shut(path: Path) -> None:
    path.chmod(0)


def make_file(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.touch()


def make_loop(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to(path.name)


@pytest.mark.parametrize("spoil", [shut, make_file, make_loop])
def test_checkpoints_that_cannot_be_listed_are_no_reason_to_start_again(
    spoil: Callable[[Path], None], commands: Commands
) -> None:
    run = commands.copy("begun-catch")
    before = logs(run)
    spoil(run / "checkpoints")
    said = commands.complaint("train", "--resume", "run", bound=True)
    assert said.startswith("checkpoints: 'run/checkpoints' cannot be read: ")
    assert logs(run) == before


def test_a_checkpoint_that_may_not_be_read_is_neither_skipped_nor_quarantined(commands: Commands) -> None:
    run = commands.copy("begun-catch")
    before, newest = logs(run), run / "checkpoints" / "step-000000040"
    (newest / "state.json").chmod(0)
    said = commands.complaint("train", "--resume", "run", bound=True)
    assert said == "checkpoint: 'run/checkpoints/step-000000040/state.json' cannot be read: Permission denied"
    assert logs(run) == before
    assert newest.is_dir()


def test_lines_that_a_resumed_run_removes_have_a_copy(commands: Commands) -> None:
    run = commands.copy("begun-catch")
    before = logs(run)
    (run / "checkpoints").rename(run / "aside")
    assert commands.run("train", "--resume", "run", "--quiet").code == 0
    assert {name: (run / f"{name}.removed").read_bytes() for name in LOGS} == before


@pytest.mark.parametrize("path", ["n" * 300, "shut/inside", "a\0b", "loop/run"])
@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "PATH"],
        ["export", "PATH", "--out", "new"],
        ["export", "run", "--out", "PATH"],
        ["probe", "PATH", "dynamics"],
        ["report", "PATH"],
        ["report", "run", "--out", "PATH"],
        ["train", "--resume", "PATH"],
        ["train", "toy/catch", "--run-dir", "PATH", "--quiet"],
        ["train", "toy/catch", "--run-dir", "PATH", "--resume"],
        ["train", "toy/catch", "--method=rl", "--encoder-from", "PATH"],
        ["sweep", "PATH.toml", "--suite=toy/catch", "--dry-run"],
        ["sweep", "toy", "--suite=toy/catch", "--seeds=1", "--out", "PATH"],
    ],
    ids=" ".join,
)
def test_a_path_that_cannot_be(words: list[str], path: str, commands: Commands) -> None:
    (commands.folder / "shut" / "inside").mkdir(parents=True)
    (commands.folder / "shut").chmod(0)
    (commands.folder / "loop").symlink_to("loop")
    commands.copy("catch")
    said = commands.complaint(*(word.replace("PATH", path) for word in words), bound=True)
    assert len(said) < 700
    assert sorted(p.name for p in commands.folder.iterdir()) == ["loop", "run", "shut"]


def brackets(file: Path) -> None:
    file.write_bytes(b"[" * 200_000 + b"\n")


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def text_returns(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "returns": ["x"]}) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("config.json", brackets, "it is nested more than 100 levels deep"),
        ("evaluations.jsonl", brackets, ""),  # a damaged line, as those of text: the page names it
        ("evaluations.jsonl", fifo, "it is not a regular file"),
        ("metrics.jsonl", device, "it is not a regular file"),
        ("evaluations.jsonl", text_returns, ""),
        ("config.json", fifo, "it is not a regular file"),
    ],
)
def test_one_rotten_file_does_not_take_the_others_down(
    name: str, spoil: Callable[[Path], None], reason: str, commands: Commands
) -> None:
    commands.copy("rl", "good")
    run = commands.copy("begun-catch")
    spoil(run / name)
    reported = commands.run("report", "good", "run", "--out", "page")
    said = f"playvirtual: 'run' cannot be used: run: 'run/{name}' cannot be read: {reason}\n" if reason else ""
    assert (reported.code, reported.err) == (0, said)
    assert "run" in (commands.folder / "page" / "index.html").read_text()
    evaluated = commands.run("evaluate", "run", "--episodes=1")
    assert evaluated.code == (2 if name == "config.json" else 0), evaluated
    resumed = commands.run("train", "--resume", "run", "--quiet")
    assert resumed.code in (0, 2), resumed
    assert "Traceback" not in evaluated.err + resumed.err
    assert resumed.err.count("error: ") == (resumed.code == 2)


def test_the_config_of_an_export_is_compared_with_its_checksum(commands: Commands) -> None:
    file = commands.copy("export") / "config.json"
    file.write_text(file.read_text().replace('"seed": 1', '"seed": 2'))
    said = commands.complaint("evaluate", "run")
    assert said == "checkpoint: 'run/config.json' is damaged (its checksum does not match)"


@pytest.mark.parametrize(
    "words", [["evaluate", "run"], ["export", "run", "--out", "new"], ["probe", "run", "dynamics"]]
)
def test_a_size_that_the_weights_do_not_have(words: list[str], commands: Commands) -> None:
    file = commands.copy("catch") / "config.json"
    file.write_text(file.read_text().replace('"hidden": 16', '"hidden": 32'))
    said = commands.complaint(*words)
    assert said.startswith(
        "checkpoint: 'run/checkpoints/step-000000040' cannot be used (RuntimeError: Error(s) in load"
    )
    assert not (commands.folder / "new").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"step": "x"},
        {"step": -1},
        {"step": None},
        {"observation_shape": [1, 10]},
        {"observation_shape": "abc"},
        {"observation_shape": [1, 0, 10]},
        {"observation_shape": [1, 10, 10**9]},
        {"actions": {}},
        {"actions": {"n": 0}},
        {"actions": {"n": 10**30}},
        {"actions": {"n": 7}},
        {"actions": {"low": [1], "high": [0]}},
        {"actions": {"low": [-1], "high": [1]}},
    ],
    ids=str,
)
def test_a_forged_agent_with_the_right_checksum(change: dict[str, Any], commands: Commands) -> None:
    file = commands.copy("export") / "agent.json"
    replace(file, json.dumps({**json.loads(file.read_text()), **change}).encode())
    assert "'run" in commands.complaint("evaluate", "run")


FORGED: list[tuple[str, Any]] = [
    ("step", "x"),
    ("step", 10**9),
    ("step", None),
    ("episode_returns", [["x"]]),
    ("truncated_frame", 3),
    ("random", {}),
    ("env", {"dict": []}),
    ("agent", []),
    ("learner", {"dict": [["updates", "x"]]}),
    ("replay", {"dict": [["num_added", 10**30]]}),
    ("sampler", {"tensor": ["nothing", None]}),
    ("generator", {"tensor": [["x"], 3]}),
]


@pytest.mark.parametrize(("name", "value"), FORGED, ids=[f"{name}={value}"[:40] for name, value in FORGED])
def test_a_forged_state_with_the_right_checksum(name: str, value: Any, commands: Commands) -> None:
    run = commands.copy("begun-catch")
    before = logs(run)
    for checkpoint in (run / "checkpoints").iterdir():
        record = json.loads((checkpoint / "state.json").read_text())
        for entry in record["tree"]["dict"]:
            if entry[0] == name:
                entry[1] = value
        replace(checkpoint / "state.json", json.dumps(record).encode())
    said = commands.complaint("train", "--resume", "run", code=1)
    assert "cannot be used" in said
    assert "nothing was changed" in said
    assert logs(run) == before


def test_a_damaged_older_checkpoint_does_not_end_the_next_save(commands: Commands) -> None:
    """Files of the older checkpoint are linked into the next one, as far as its manifest can be read."""
    run = commands.copy("begun-catch")
    (run / "checkpoints" / "step-000000030" / "manifest.json").write_text('{"weights.safetensors": [[]]}')
    ended = commands.run("train", "--resume", "run", "--quiet")
    assert ended.code == 0, ended
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["step-000000050", "step-000000060"]


@pytest.mark.parametrize("name", ["run.lock", "metrics.jsonl", "probes.partial"])
def test_a_link_in_a_run_folder_leads_no_writing_elsewhere(name: str, commands: Commands) -> None:
    run, precious = commands.copy("begun-catch"), commands.folder / "precious"
    precious.write_text('{"step": 1}\n')
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    words = ["probe", "run", "complexity"] if name == "probes.partial" else ["train", "--resume", "run"]
    commands.complaint(*words)
    assert precious.read_text() == '{"step": 1}\n'


TRUST = [
    ["evaluate", "run", "--episodes=1"],
    ["probe", "run", "dynamics", "--transitions=5"],
    ["train", "--resume", "run", "--quiet"],
]


@pytest.mark.parametrize("words", TRUST, ids=" ".join)
def test_a_module_that_only_a_run_folder_names_is_not_imported_without_a_word(
    words: list[str], commands: Commands
) -> None:
    run = commands.copy("begun-gym")
    foreign = (commands.originals / "foreign.py").read_text()
    (commands.folder / "evil.py").write_text(f"open('executed', 'w').close()\n{foreign}")
    config = run / "config.json"
    config.write_text(config.read_text().replace("gym/foreign:", "gym/evil:"))
    said = commands.complaint(*words)
    assert said == (
        "task: the run folder 'run' names 'gym/evil:Good-v0', so the module 'evil' would be imported, which executes "
        "it; allowed: with --trust-env (in Python: trust_env=True), if you trust it, or with --import evil"
    )
    assert not (commands.folder / "executed").exists()
    assert commands.run(*words, "--trust-env").code == 0
    assert (commands.folder / "executed").exists()


def test_the_command_that_resumes_a_run_has_the_word_that_its_module_needs(commands: Commands) -> None:
    run = commands.copy("begun-gym")
    commands.copy("foreign.py", "foreign.py")
    foreign = (commands.folder / "foreign.py").read_text()
    (commands.folder / "foreign.py").write_text(
        foreign.replace("def reward(self): return 1.0", "def reward(self): ...")
    )
    said = commands.complaint("train", "--resume", str(run), "--trust-env", code=1)
    assert said.endswith(f"to resume: playvirtual train --resume {run} --trust-env")


def test_a_module_that_only_a_grid_names_is_not_imported_without_a_word(commands: Commands) -> None:
    grid = commands.copy("grid.toml", "grid.toml")
    grid.write_text(grid.read_text().replace("toy/catch", "gym/evil:Good-v0"))
    (commands.folder / "evil.py").write_text("open('executed', 'w').close()\n")
    said = commands.complaint("sweep", "grid.toml", "--seeds=1", "--dry-run")
    assert said.startswith(
        "task: the grid 'grid.toml' names 'gym/evil:Good-v0', so the module 'evil' would be imported"
    )
    assert not (commands.folder / "executed").exists()
