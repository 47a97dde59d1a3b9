"""Damaged JSONL logs: a run resumes, and one line says what is lost."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint, jsonl
from tests.training.interrupting import interrupted

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 100,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 3,
    "eval_every": 30,
    "log_every": 20,
    "checkpoint_every": 0,
}
GARBAGE = b'\x00\xff{"step": \n[1]\n'


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("whole") / "run", quiet=True, **CATCH).path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped at step 71: metrics of steps 20, 40 and 60, evaluations of 30 and 60."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    interrupted("toy/catch", CATCH, path, 70)
    return path


def steps(path: Path, name: str) -> list[int]:
    return [json.loads(line)["step"] for line in (path / f"{name}.jsonl").read_text().splitlines()]


def cut(file: Path) -> None:
    """Leaves the first line and half of the second."""
    data = file.read_bytes()
    first = data.index(b"\n") + 1
    os.truncate(file, (first + data.index(b"\n", first)) // 2)


def scribble(file: Path) -> None:
    """One byte of the first line is another."""
    data = bytearray(file.read_bytes())
    data[0] ^= 0x10
    file.write_bytes(data)


def append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(GARBAGE)


@pytest.mark.parametrize(
    ("name", "damage", "lost"),
    [
        ("metrics", cut, {40, 60}),
        ("metrics", Path.unlink, {20, 40, 60}),
        ("metrics", scribble, {20}),
        ("metrics", append, set()),
        ("evaluations", cut, {60}),
        ("evaluations", scribble, {30}),
        ("evaluations", append, set()),
        ("timing", Path.unlink, None),
    ],
)
def test_a_damaged_log_loses_its_damaged_lines(
    name: str,
    damage: Callable[[Path], None],
    lost: set[int] | None,
    whole: Path,
    begun: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run"
    shutil.copytree(begun, path)
    file = path / f"{name}.jsonl"
    damage(file)
    left = file.read_bytes() if file.exists() else b""
    capsys.readouterr()
    pv.resume(path, quiet=True)
    said = capsys.readouterr().err.splitlines()
    if lost == set():
        assert len(said) == 1
    else:
        assert said[0].startswith(f"playvirtual: {file} is damaged: ")
        assert len(said) == 2
        assert (path / f"{name}.jsonl.damaged").read_bytes() == left
    assert said[-1].endswith("resuming at step 71")
    for each in {"metrics", "evaluations"} - {name}:
        assert (path / f"{each}.jsonl").read_bytes() == (whole / f"{each}.jsonl").read_bytes()
    if lost is not None:
        lines = (whole / f"{name}.jsonl").read_text().splitlines(keepends=True)
        assert file.read_text() == "".join(line for line in lines if json.loads(line)["step"] not in lost)
    weights = [checkpoint.newest(run) / "weights.safetensors" for run in (path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_damaged_last_evaluation_is_repeated(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    file = path / "evaluations.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + b"\xff" + lines[-1])
    pv.resume(path, quiet=True)
    assert file.read_bytes() == (whole / "evaluations.jsonl").read_bytes()


def test_lines_beyond_the_checkpoint_are_removed_even_where_its_positions_do_not_fit(tmp_path: Path) -> None:
    """Of 9 lines the checkpoint of step 60 knows 6; without the first 2 the sixth is of step 80."""
    lines = [json.dumps({"step": 10 * i, "loss": 0.25}) + "\n" for i in range(1, 10)]
    position = sum(map(len, lines[:6]))
    (tmp_path / "metrics.jsonl").write_text("".join(lines[2:]))
    (said,) = jsonl.rewind(tmp_path, {"metrics": position}, 60)
    assert "its 4 undamaged lines up to step 60 stay" in said
    assert steps(tmp_path, "metrics") == [30, 40, 50, 60]
    assert jsonl.rewind(tmp_path, jsonl.synced_sizes(tmp_path), 60) == []
    assert steps(tmp_path, "metrics") == [30, 40, 50, 60]


def test_the_last_complete_line_of_a_growing_log(tmp_path: Path) -> None:
    assert jsonl.last(tmp_path, "metrics") == {}
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' * 2000 + b'{"step": 2}\n' + GARBAGE + b'{"step": 3')
    assert jsonl.last(tmp_path, "metrics") == {"step": 2}


def log(folder: Path, *records: dict[str, Any], name: str = "evaluations") -> Path:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize(("mean", "damaged"), [(0.5, []), (0.5 + 1e-9, []), (8.5, [1]), (1e300, [1]), (None, [1])])
def test_a_mean_that_is_not_that_of_its_returns_is_damage(mean: float, damaged: list[int], tmp_path: Path) -> None:
    """A flipped bit of a number leaves a number: a report showed it as the run's score."""
    assert jsonl.read(log(tmp_path, {"step": 30, "mean": mean, "returns": [1.0, 0.0]}), "evaluations")[1] == damaged


def test_lines_that_come_twice_or_too_late_are_damage(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"step": step, "returns": [1.0]} for step in (30, 60, 60, 30, 90)]
    read, damaged = jsonl.read(log(tmp_path, *records), "evaluations")
    assert ([record["step"] for record in read], damaged) == ([30, 60, 90], [3, 4])
    read, damaged = jsonl.read(log(tmp_path, *records, name="timing"), "timing")
    assert ([record["step"] for record in read], damaged) == ([30, 60, 60, 90], [4])


@pytest.mark.parametrize(
    ("steps", "kept", "damaged"),
    [
        ([950, 60, 90, 120], [60, 90, 120], [1]),
        ([30, 930, 90, 120], [30, 90, 120], [2]),
        ([30, 60, 90, 12], [30, 60, 90], [4]),
        ([30, 960, 990, 120, 150, 180], [30, 120, 150, 180], [2, 3]),
        ([950, 60], [60], [1]),
        ([], [], []),
    ],
)
def test_a_step_that_was_changed_costs_no_line_after_it(
    steps: list[int], kept: list[int], damaged: list[int], tmp_path: Path
) -> None:
    """A report took the evaluation whose step had become the largest for the run's last one."""
    for name in ("evaluations", "timing"):
        read, left_out = jsonl.read(log(tmp_path, *({"step": step} for step in steps), name=name), name)
        assert ([record["step"] for record in read], left_out) == (kept, damaged)


def test_a_finished_run_whose_score_was_changed_is_scored_again(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    file = path / "evaluations.jsonl"
    *before, last = [json.loads(line) for line in file.read_text().splitlines()]
    log(path, *before, {**last, "mean": last["mean"] + 1.0})
    pv.resume(path, quiet=True)
    assert file.read_bytes() == (whole / "evaluations.jsonl").read_bytes()
