"""The measurement of all targets in one call, with toys in place of the paper's tasks."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANG

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "targets.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return runpy.run_path(str(SCRIPT))


def test_a_target_is_met_on_its_own_side_of_the_limit(script: dict[str, Any]) -> None:
    found = {"pong update": 1.1, "alien update": 1.61, "cartpole rate": 170.0, "rollout M=12 back": 349.9}
    rows = [line for line in script["table"](found).splitlines() if line.endswith(("yes |", "no |"))]
    assert rows == [
        "| rollouts of Pong (M = 12), back | ≥ 350 TFLOP/s | 349.9 TFLOP/s | no |",
        "| Pong update | ≤ 1.1 ms | 1.1 ms | yes |",
        "| Alien update | ≤ 1.6 ms | 1.61 ms | no |",
        "| DMControl updates/s | ≥ 170 updates/s | 170 updates/s | yes |",
    ]


def test_rollouts_are_those_of_recorded_and_virtual_trajectories_in_one_launch(script: dict[str, Any]) -> None:
    rows = [
        {"M": M, "N": N, "kernels": kernels, "way": way, "tflops": tflops}
        for M, N, kernels, way, tflops in [
            (12, 416, "one launch", "forward", 337.0),
            (12, 416, "one launch", "back", 269.0),
            (12, 416, "one launch", "parameters", 448.0),
            (12, 416, "per step", "forward", 120.0),
            (12, 384, "one launch", "forward", 342.0),
            (36, 1184, "one launch", "back", 383.0),
            (36, 1152, "one launch", "back", 384.0),
        ]
    ]
    assert script["rollout_figures"](rows) == {
        "rollout M=12 forward": 337.0,
        "rollout M=12 back": 269.0,
        "rollout M=36 back": 383.0,
    }


def test_figures_of_updates_are_found_by_their_tasks(script: dict[str, Any]) -> None:
    rows = [
        {"row": {"task": task}, "measurement": {"update_ms": {"median": ms}, "updates_per_s": 1e3 / ms}}
        for task, ms in [("dmc/cartpole-swingup", 5.0), ("atari/alien", 1.75), ("atari/pong", 1.0)]
    ]
    found = {"pong update": 1.0, "alien update": 1.75, "cartpole rate": 200.0}
    assert script["update_figures"](rows) == found


def test_help_has_a_line_for_every_part(script: dict[str, Any]) -> None:
    assert all(f"\n  {name} " in script["__doc__"] for name in script["PARTS"])


def measure(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", "targets.json", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG)


@pytest.mark.slow
def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for text, words in (
        ("not JSON", "is not of this script"),
        ("[]", "is not of this script"),
        ('{"machine": {"device": "abacus"}, "figures": {}}', "has figures of another machine"),
    ):
        (tmp_path / "targets.json").write_text(text)
        done = measure("--toys", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: out: 'targets.json' {words}")
        assert (tmp_path / "targets.json").read_text() == text


@pytest.mark.slow
@pytest.mark.long
def test_parts_are_measured_once_and_a_failed_one_does_not_stop_the_others(tmp_path: Path) -> None:
    parts = ["start", "cartpole", "run"]
    done = measure("--toys", "--only", "rollouts", *parts, cwd=tmp_path)  # rollouts need a GPU
    assert done.returncode == 1, done.stderr
    assert "rollouts: failed with exit code 2" in done.stderr
    figures = json.loads((tmp_path / "targets.json").read_text())["figures"]
    assert list(figures) == parts
    names = {name for part in figures.values() for name in part}
    assert names == {"cold start", "warm start", "pong update", "cartpole rate", "pong run"}
    assert all(figure > 0 for part in figures.values() for figure in part.values())
    again = measure("--toys", "--only", *parts, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines() == [f"{part}: measured already" for part in parts]
    assert again.stdout == done.stdout
