"""Real sweeps: real processes, real runs, stopped, failed and done again; then the report in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from playvirtual.cli.main import main
from tests.cli.command import playvirtual
from tests.study.chromium import needs_chromium, open_page
from tests.study.untrained import write_run
from tests.waiting import HANG, wait_until

QUICK = [
    "--steps=240",
    "--learning-starts=60",
    "--K=2",
    "--batch-size=8",
    "--eval-episodes=4",
    "--eval-every=60",
    "--log-every=30",
    "--device=cpu",
]
SWEEP = ["sweep", "toy", "--suite", "toy/catch", "--out", "runs", *QUICK]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs of 3 methods × 2 seeds and their report."""
    folder = tmp_path_factory.mktemp("study")
    done = playvirtual(*SWEEP, "--seeds", "2", "--workers", "2", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6/6 runs finished" in done.stdout
    assert done.stdout.endswith("\nnext: playvirtual report runs\n")
    written = playvirtual("report", "runs", "--out", "report", cwd=folder)
    assert written.returncode == 0, written.stderr
    assert "6 finished runs of 1 task" in written.stdout
    return folder


def test_the_report_that_is_suggested_imports_what_the_sweep_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "toy-catch" / "spr" / "seed-1", "toy/catch", "spr", 1, 0.0)
    words = ["sweep", "toy", "--suite", "toy/catch", "--rows", "spr", "--seeds", "1", "--out", str(tmp_path)]
    assert main([*words, "--import", "json"]) == 0
    assert capsys.readouterr().out.endswith(f"\nnext: playvirtual report {tmp_path} --import json\n")


@pytest.mark.slow
def test_a_second_sweep_does_nothing_and_more_seeds_do_only_the_rest(study: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (study / "runs").rglob("*")}
    again = playvirtual(*SWEEP, "--seeds", "2", cwd=study)
    assert again.returncode == 0
    assert "6 runs, 6 finished before" in again.stdout
    assert "started" not in again.stdout
    assert "next: playvirtual report runs\n" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (study / "runs").rglob("*")} == before
    plan = playvirtual(*SWEEP, "--seeds", "3", "--dry-run", cwd=study).stdout
    assert "9 runs, 6 finished; 3 to do, about" in plan
    assert "measured from finished runs" in plan
    for run in (study / "runs").glob("*/*/seed-*/"):  # a process takes longer than what its own clock sees
        whole = json.loads((run / "sweep.json").read_text())["seconds"]
        assert whole > json.loads((run / "timing.jsonl").read_text().splitlines()[-1])["seconds"]


@pytest.mark.slow
def test_the_whole_suite_of_toys_is_swept_under_one_set_of_flags(tmp_path: Path) -> None:
    """Both kinds of actions, Rainbow and SAC, in one sweep: six runs are planned, those of one method are made."""
    small = [
        "--steps=100",
        "--learning-starts=60",
        "--K=1",
        "--eval-episodes=2",
        "--eval-every=0",
        "--batch-size=8",
        "--device=cpu",
    ]
    words = ["sweep", "toy", "--seeds", "1", "--out", "runs", *small]
    planned = playvirtual(*words, "--dry-run", cwd=tmp_path).stdout
    assert "6 runs, 0 finished; 6 to do" in planned
    done = playvirtual(*words, "--rows", "playvirtual", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2/2 runs finished" in done.stdout
    found = {"/".join(path.parts[-4:-1]) for path in (tmp_path / "runs").rglob("evaluations.jsonl")}
    assert found == {f"toy-{task}/playvirtual/seed-1" for task in ("catch", "reach")}


@pytest.mark.slow
def test_a_changed_configuration_is_refused_with_the_difference(study: Path) -> None:
    result = playvirtual(*SWEEP, "--learning-rate=0.5", cwd=study)
    assert result.returncode == 2
    assert "was made with another configuration (learning_rate: 0.001 → 0.5)" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_report_has_every_setting_and_its_files(study: Path) -> None:
    page = (study / "report" / "index.html").read_text()
    for text in ("playvirtual", "spr", "rl", "IQM", "catch", "Toys, 240 steps", "K = 2"):
        assert text in page
    tables = {path.name for path in (study / "report" / "tables").iterdir()}
    assert {"toy-240-scores.csv", "toy-240-aggregates.tex", "toy-240-improvement.md", "parameters.csv"} <= tables
    assert {"toy-240-curves.png", "toy-240-profiles.svg"} <= {p.name for p in (study / "report" / "plots").iterdir()}


@pytest.mark.slow
@needs_chromium
def test_a_browser_shows_the_report_without_a_complaint(study: Path, tmp_path: Path) -> None:
    dom, console = open_page(study / "report" / "index.html", tmp_path)
    assert console == []
    assert dom.count("<svg") == 5


@pytest.mark.slow
def test_a_run_that_fails_is_retried_unless_its_input_is_bad_and_stops_no_other(tmp_path: Path) -> None:
    foreign = tmp_path / "runs" / "toy-catch" / "spr" / "seed-1" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not a run")
    rows = (
        '[[row]]\nmethod = "rl"\n[[row]]\nmethod = "spr"\n[[row]]\nlabel = "wild"\noptions = {learning_rate = 1e30}\n'
    )
    (tmp_path / "mine.toml").write_text(rows)
    words = ["sweep", "mine.toml", "--suite", "toy/catch", *QUICK, "--seeds", "1", "--retries", "1"]
    result = playvirtual(*words, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.count("started   toy/catch  wild  seed 1") == 2
    assert result.stdout.count("started   toy/catch  spr  seed 1") == 1
    assert "finished  toy/catch  rl  seed 1" in result.stdout
    assert "\n2 runs failed; the same command tries them again: playvirtual sweep mine.toml" in result.stderr
    assert "failed: runs/toy-catch/spr/seed-1: playvirtual: error: run_dir:" in result.stderr
    assert "not finite at step" in result.stderr
    assert foreign.read_text() == "not a run"


@pytest.mark.slow
def test_a_sweep_that_is_stopped_resumes_with_the_same_command(tmp_path: Path, study: Path) -> None:
    """Stopped in mid-run, its runs end in the results of an uninterrupted sweep."""
    words = [sys.executable, "-m", "playvirtual", *SWEEP, "--seeds", "1", "--rows", "playvirtual"]
    log = tmp_path / "runs" / "toy-catch" / "playvirtual" / "seed-1" / "metrics.jsonl"
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(log.exists, "the first line of metrics.jsonl")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=HANG)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 130
    assert "stopped with 1 run to go; resume with the same command: playvirtual sweep toy" in stderr
    assert playvirtual(*SWEEP, "--seeds", "1", "--rows", "playvirtual", cwd=tmp_path).returncode == 0
    ours, theirs = (
        (folder / "runs" / "toy-catch" / "playvirtual" / "seed-1" / "evaluations.jsonl").read_text()
        for folder in (tmp_path, study)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "toyy"], "experiment: 'toyy' is not known; did you mean 'toy'"),
        (["sweep", "toy", "--suite", "minatr"], "suite: 'minatr' is not known; did you mean 'minatar'"),
        (["sweep", "toy", "--seeds", "0"], "seeds: 0 is not allowed; allowed: 1 to 10000"),
        (["sweep", "toy", "--seeds", "1e12"], "seeds: 1000000000000 is not allowed; allowed: 1 to 10000"),
        (["sweep", "toy", "--engine", "rai"], "engine: 'rai' is not known; did you mean 'ray'"),
        (["sweep", "toy", "--workers", "0"], "workers: 0 is not allowed"),
        (["sweep", "toy", "--retries", "-1", "--dry-run"], "retries: -1 is not allowed; allowed: 0 or more"),
        (
            ["sweep", "toy", "--address", "auto", "--dry-run"],
            "address: 'auto' is not allowed with --engine local; allowed: --workers, --per-gpu, --mps, or --engine ray",
        ),
        (["sweep", "toy", "--gpus-per-run", "0.25"], "gpus_per_run: '0.25' is not allowed with --engine local"),
        (["sweep", "toy", "--out="], "out: '' is not allowed; allowed: the path of a folder, such as '.'"),
        (["report", "runs", "--out="], "out: '' is not allowed; allowed: the path of a folder, such as '.'"),
        (["sweep", "toy", "--engine", "ray", "--per-gpu=4"], "per_gpu: '4' is not allowed with --engine ray"),
        (["sweep", "toy", "--engine", "ray", "--device=cuda:1"], "device: 'cuda:1' is not allowed with --engine ray"),
        (["sweep", "ablation-k", "--K=4", "--dry-run"], "K: '4' is not allowed with ablation-k, every row of which"),
        (["sweep", "toy", "--device=cuda:99"], "device: 'cuda:99' is not there"),
        (["report", "nowhere"], "runs: 'nowhere' is not there"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"playvirtual: error: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "task", "steps"), [(["sweep"], "atari/pong", 100000), (["sweep", "minatar"], "minatar/asterix", 50000)]
)
def test_help_says_whose_defaults_it_shows(
    words: list[str], task: str, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"Defaults shown for them are those of {task}; other tasks have others." in text
    assert f"(default: {steps})" in text
    assert "or tasks: a,b,c (default: those of the experiment)" in text
    assert "one of paper, reference (default: the experiment's, which is paper for most)" in text


def test_a_grid_of_ones_own_has_the_flags_of_its_own_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text('suite = ["toy/reach"]\n[[row]]\nmethod = "spr"\n')
    words = ["sweep", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "runs")]
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert "those of toy/reach; other tasks have others." in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--actor-period=3", "--dry-run", "--seeds=1"]) == 0
    assert "1 run, 0 finished; 1 to do" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_run_whose_configuration_cannot_be_read_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("runs", "toy-catch", "rl", "seed-1")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text(text)
    (tmp_path / folder / "evaluations.jsonl").write_text('{"step": 240, "mean": 0.5}\n')
    monkeypatch.chdir(tmp_path)
    assert main([*SWEEP, "--rows", "rl", "--seeds", "1", "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert f"unreadable: run: '{folder}' cannot be read: " in planned
    assert "; remove it to run it anew" in planned
    assert planned.endswith("\n1 run, 0 finished, 1 unreadable; nothing else to do\n")


@pytest.mark.slow
def test_a_corrupt_run_folder_is_named_and_the_rest_is_reported(study: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(study / "runs", runs)
    (runs / "toy-catch" / "rl" / "seed-1" / "config.json").write_text("{")
    os.remove(runs / "toy-catch" / "rl" / "seed-2" / "evaluations.jsonl")
    lines = (runs / "toy-catch" / "spr" / "seed-1" / "evaluations.jsonl").read_text().splitlines()
    lines[0] = "\x00" + lines[0]
    (runs / "toy-catch" / "spr" / "seed-1" / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    written = playvirtual("report", "runs", "--out", "report", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "4 finished runs of 1 task, 1 unfinished, 1 unusable folder, 1 damaged file" in written.stdout
    page = (tmp_path / "report" / "index.html").read_text()
    assert "evaluations.jsonl: not a record and left out: line 1" in page
    assert "evaluated to step 0 of 240" in page
    assert json.loads((runs / "toy-catch" / "spr" / "seed-2" / "config.json").read_text())["seed"] == 2
