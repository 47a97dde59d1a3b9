"""The queue of runs: a real one of toys is carried out, packed and found again; the published one is consistent."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.waiting import HANG

RESULTS = Path(__file__).parents[2] / "results"
if not RESULTS.exists():
    pytest.skip("results/ is not here", allow_module_level=True)

OPTIONS = "steps = 60, learning_starts = 40, K = 2, eval_episodes = 2, eval_every = 0, batch_size = 8"
ENTRY = """
[[entry]]
name = "{name}"
tasks = ["toy/catch"]
method = "{method}"
preset = "paper"
seeds = [{seeds}]
options = {{ {options} }}
status = "{status}"
"""
PACE = """
[[pace]]
tasks = ["toy/catch"]
minutes = { 1 = 4000 }
"""  # 2.4 minutes for a run of 60 steps


def entry(name: str, method: str, seeds: str, status: str = "open") -> str:
    return ENTRY.format(name=name, method=method, seeds=seeds, options=OPTIONS, status=status)


COMMON = ["--queue=queue.toml", "--results=results", "--out=work", "--commit=abc1234", "--device=cpu"]


def run_queue(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs results/run_queue.py on the queue in `folder`, with runs on the CPU and finished ones in folder/results."""
    done = subprocess.run(
        [sys.executable, RESULTS / "run_queue.py", *COMMON, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return done


def started(folder: Path, *words: str) -> list[tuple[str, int]]:
    """(name of the entry, seed) of the runs that would be started, as the same program says in this process."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["run_queue.py", *COMMON, *words, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RESULTS / "run_queue.py"), run_name="__main__")
    assert ended.value.code == 0
    lines = said.getvalue().splitlines()[1:]
    found = [re.match(r"toy/catch  (.+)  seed (\d+): playvirtual train toy/catch ", line) for line in lines]
    return [(match[1], int(match[2])) for match in found if match]


@pytest.mark.slow
def test_as_many_runs_as_fit_are_started_in_the_order_of_the_queue(tmp_path: Path) -> None:
    done = entry("done before", "rl", "1", status="done")
    (tmp_path / "queue.toml").write_text(done + entry("first", "spr", "1, 2") + entry("second", "rl", "3") + PACE)
    first, second = [("first", 1), ("first", 2)], [("second", 3)]
    assert started(tmp_path, "--minutes=2", "--workers=1") == []
    assert started(tmp_path, "--minutes=5", "--workers=1") == first
    assert started(tmp_path, "--minutes=8", "--workers=1") == first + second
    assert started(tmp_path, "--minutes=5", "--workers=2", "--per-gpu=1") == first + second
    twice = entry("first", "spr", "2") + entry("second", "rl", "3") + entry("third", "spr", "1, 2")
    (tmp_path / "queue.toml").write_text(twice + PACE)
    assert started(tmp_path, "--minutes=8", "--workers=1") == [("first", 2), ("second", 3), ("third", 1)]
    quick = PACE.replace("minutes", 'methods = ["spr"]\nminutes').replace("4000", "100")  # 0.06 minutes
    (tmp_path / "queue.toml").write_text(entry("second", "rl", "3") + entry("first", "spr", "1, 2") + PACE + quick)
    assert started(tmp_path, "--minutes=1", "--workers=1") == first


@pytest.mark.slow
def test_finished_runs_are_packed_with_their_provenance_and_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "spr", "1") + entry("second", "rl", "1, 2") + PACE)
    (tmp_path / "results" / "toy").mkdir(parents=True)
    before = '[[group]]\nruns = ["runs/older"]\ncommit = "0000000"\n'
    (tmp_path / "results" / "toy" / "provenance.toml").write_text(before)
    first = run_queue(tmp_path, "--minutes=5", "--workers=1")
    assert "3 runs to do, 2 of them fit into 5 minutes" in first.stdout
    with tarfile.open(tmp_path / "work" / "abc1234.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "results", filter="data")
    runs = sorted((tmp_path / "results" / "toy" / "runs").glob("*/*/seed-*"))
    assert [(run.parent.name.partition("-")[0], run.name) for run in runs] == [("rl", "seed-1"), ("spr", "seed-1")]
    for run in runs:
        logs = {"config.json", "metrics.jsonl", "evaluations.jsonl", "timing.jsonl"}
        assert {file.name for file in run.iterdir()} == logs
    assert len(names) == 9
    groups = tomllib.loads((tmp_path / "results" / "toy" / "provenance.toml").read_text())["group"]
    assert [group["commit"] for group in groups] == ["0000000", "abc1234"]
    assert sorted(groups[1]["runs"]) == [str(run.relative_to(tmp_path / "results" / "toy")) for run in runs]
    assert started(tmp_path, "--minutes=60", "--out=elsewhere") == [("second", 2)]
    assert started(tmp_path, "--minutes=60") == [("second", 2)]


@pytest.mark.slow
def test_runs_that_are_still_going_when_the_minutes_are_over_are_left_to_the_next_call(tmp_path: Path) -> None:
    long = entry("long", "rl", "1").replace("steps = 60", "steps = 20000")
    (tmp_path / "queue.toml").write_text(long + PACE.replace("4000", "0.1"))
    stopped = run_queue(tmp_path, "--minutes=0.05", "--workers=1")
    assert "stopped: toy/catch  long  seed 1; the next call resumes it" in stopped.stderr
    assert "finished run" not in stopped.stdout.splitlines()[-1]
    assert started(tmp_path, "--minutes=0.05", "--workers=1") == [("long", 1)]


def test_the_entries_of_the_queue_are_marked_as_what_they_are() -> None:
    queue = tomllib.loads((RESULTS / "queue.toml").read_text())
    paced = {task for pace in queue["pace"] for task in pace["tasks"]}
    names = [entry["name"] for entry in queue["entry"]]
    assert len(names) == len(set(names))
    for entry in queue["entry"]:
        assert set(entry["tasks"]) <= paced
        assert entry["status"] in ("open", "done")
        assert len(entry.get("runs", ())) == (len(entry["tasks"]) * len(entry["seeds"]) * (entry["status"] == "done"))
        assert all((RESULTS / run / "evaluations.jsonl").exists() for run in entry.get("runs", ()))
