"""The command line as a person meets it: real processes, exit codes, one-line errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = [
    "--steps",
    "120",
    "--min-size",
    "60",
    "--K",
    "2",
    "--episodes",
    "4",
    "--every",
    "60",
    "--log-every",
    "60",
]


def playvirtual(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "playvirtual", *words], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "atari/pomg"], "task: 'atari/pomg' is not known; did you mean 'atari/pong'?"),
        (["train", "pong"], "task: 'pong' has no family; did you mean 'atari/pong'?"),
        (["train", "atri/pong"], "task family: 'atri' is not known; did you mean 'atari'?"),
        (["train", "toy/catch", "--method", "sprr"], "method: 'sprr' is not known; did you mean 'spr'?"),
        (["train", "toy/catch", "--preset", "x"], "preset: 'x' is not known; allowed: paper, reference"),
        (
            ["train", "toy/catch", "--lambda-perd", "1"],
            "option: '--lambda-perd' is not known; did you mean '--lambda-pred'?",
        ),
        (["train", "toy/catch", "--K", "-3"], "K: -3 is not allowed; allowed: 0 or more"),
        (
            ["train", "toy/catch", "--min-size", "3"],
            "min_size: 3 is not allowed; allowed: more than 10, ",
        ),
        (["train", "toy/catch", "--capacity", "6"], "capacity: 6 is not allowed; allowed: "),
        (["train", "--K", "-3", "toy/reach"], "K: -3 is not allowed; allowed: 0 or more"),
        (["train", "toy/catch", "--steps"], "argument --steps: expected one argument"),
        (["train", "toy/catch", "extra"], "argument: 'extra' is one too many"),
        (["train", "toy/catch", "--device", "cuda:99"], "device: 'cuda:99' is not there"),
        (["train"], "the following arguments are required: task"),
        (["train", "--resume", "nowhere"], "run: 'nowhere' is not a run folder"),
        (["train", "--resume", "toy/run1"], "run: 'toy/run1' is not a run folder"),
        (["train", "--run-dir", "atari/x"], "the following arguments are required: task"),
        (["train", "--lambda-perd", "1", "toy/catch"], "option: '--lambda-perd' is not known"),
        (["train", "--run-dir", "atari/x", "toy/catch", "--crop-size", "8"], "option: '--crop-size' is not known"),
        (["bench", "--json", "toy/x.json"], "the following arguments are required: task"),
        (["sweep", "--out", "dmc/x", "dmc100k", "--v-max", "3"], "option: '--v-max' is not known"),
        (["train", "toy/catch", "--resume", "x"], "resume: 'x' is given beside a task or --run-dir"),
        (["train", "toy/catch", "--log", "tensorbord"], "log: 'tensorbord' is not known; did you mean 'tensorboard'?"),
        (["evaluate", "nowhere"], "run: 'nowhere' is not a run folder"),
        (["export", "nowhere", "--out", "agent"], "run: 'nowhere' is not a run folder"),
        (["list", "games"], "list: 'games' is not known"),
        (["trian"], "argument COMMAND: invalid choice: 'trian'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    result = playvirtual(*words, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"playvirtual: error: {message}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_train_evaluate_and_a_second_run_in_the_same_folder(tmp_path: Path) -> None:
    train = playvirtual("train", "toy/catch", *QUICK, cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    run = tmp_path / "runs" / "toy-catch" / "playvirtual" / "seed-1"
    assert "toy/catch playvirtual, seed 1: score" in train.stdout
    assert {p.name for p in run.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "timing.jsonl",
        "checkpoints",
        "run.lock",
    }
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [(e["step"], len(e["returns"])) for e in evaluations] == [(60, 4), (120, 4)]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == [60, 120]
    assert {"loss", "loss_rl", "loss_pred", "loss_cyc", "lambda_cyc", "beta", "return", "q"} <= metrics[-1].keys()

    again = playvirtual("train", "toy/catch", *QUICK, cwd=tmp_path)
    assert again.returncode == 2
    assert "run_dir: 'runs/toy-catch/playvirtual/seed-1' exists already" in again.stderr
    assert "--resume goes on with it" in again.stderr
    resumed = playvirtual("train", "toy/catch", *QUICK, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0
    assert train.stdout.endswith(resumed.stdout)  # the same score, and no progress before it
    assert resumed.stderr == "playvirtual: runs/toy-catch/playvirtual/seed-1 is finished already\n"

    scored = playvirtual("evaluate", str(run), "--episodes", "7", "--video", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert "over 7 episodes" in scored.stdout
    assert f"video: {run}/videos/evaluation-seed-1." in scored.stdout
    assert len(list((run / "videos").iterdir())) == 1


def test_folders_may_be_named_like_tasks(tmp_path: Path) -> None:
    """The resume command that such a run prints is one that the command line takes."""
    train = playvirtual("train", "--run-dir", "atari/x", "toy/reach", *QUICK, "--crop-size", "10", cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    resumed = playvirtual("train", "--resume", "atari/x", cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "playvirtual: atari/x is finished already\n")
    # The flags are those of the run's task, which is not the default one.
    changed = playvirtual("train", "--crop-size", "9", "--resume", "atari/x", cwd=tmp_path)
    assert "another configuration (crop_size: 10, 9: there, now)" in changed.stderr


def test_lists(tmp_path: Path) -> None:
    tasks = playvirtual("list", "tasks", cwd=tmp_path).stdout.split()
    assert {"atari/pong", "minatar/breakout", "toy/catch", "toy/reach"} <= set(tasks)
    methods = playvirtual("list", "methods", cwd=tmp_path).stdout.splitlines()
    assert len(methods) == 10


def test_help_shows_the_defaults_of_the_task(tmp_path: Path) -> None:
    pong = playvirtual("train", "atari/pong", "--help", cwd=tmp_path).stdout
    catch = playvirtual("train", "toy/catch", "--help", cwd=tmp_path).stdout
    assert "--noisy-sigma" in pong
    assert "(default: 100000)" in pong
    assert pong != catch
    before = playvirtual("train", "--run-dir", "minatar/x", "toy/catch", "--help", cwd=tmp_path).stdout
    assert before == catch
    assert "task" in playvirtual("bench", "--help", cwd=tmp_path).stdout
    reach = playvirtual("sweep", "--seeds", "2", "toy", "--suite", "toy/reach", "--help", cwd=tmp_path).stdout
    assert "--crop-size" in reach
