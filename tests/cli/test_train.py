"""Training, evaluation and export through the command line: scores, files, and errors of one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from playvirtual.cli.main import main
from tests.cli.command import QUICK, playvirtual


@pytest.mark.slow
def test_train_evaluate_and_a_second_run_in_the_same_folder(tmp_path: Path) -> None:
    train = playvirtual("train", "toy/catch", *QUICK, cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    run = tmp_path / "runs" / "toy-catch" / "playvirtual" / "seed-1"
    assert "toy/catch playvirtual, seed 1: score" in train.stdout
    assert train.stdout.endswith("\nnext: playvirtual evaluate runs/toy-catch/playvirtual/seed-1 --video\n")
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
    assert "(--resume " in again.stderr
    resumed = playvirtual("train", "toy/catch", *QUICK, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0
    assert train.stdout.endswith(resumed.stdout)  # the same score, and no progress before it
    assert (
        resumed.stderr == "playvirtual: runs/toy-catch/playvirtual/seed-1 is finished already; more steps extend it\n"
    )

    scored = playvirtual("evaluate", str(run), "--episodes", "7", "--video", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert "over 7 episodes\n" in scored.stdout
    assert "over 1 episode\n" in playvirtual("evaluate", str(run), "--episodes", "1", cwd=tmp_path).stdout
    assert f"video: {run}/videos/evaluation-seed-1." in scored.stdout
    assert len(list((run / "videos").iterdir())) == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "toy/catch", *QUICK, "--device", "cpu", "--quiet", "--run-dir", str(path)]) == 0
    return path


def test_evaluate_writes_the_line_of_the_runs_own_evaluation_as_json(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "evaluation.json"
    assert main(["evaluate", str(trained), "--device", "cpu", "--quiet", "--json", str(file)]) == 0
    assert file.read_text() == (trained / "evaluations.jsonl").read_text().splitlines(keepends=True)[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "RUN", "--seed", "-1"], "seed: -1 is not allowed; allowed: 0 to 2147483647"),
        (["evaluate", "RUN", "--episodes", "0"], "episodes: 0 is not allowed; allowed: 1 or more"),
        (["evaluate", "RUN", "--json", "none/e.json"], "json: 'none/e.json' cannot be written; allowed: a file in"),
        (["evaluate", "RUN", "--device", "tpu"], "device: 'tpu' is not allowed; allowed: auto, cpu, cuda, cuda:N"),
        (["probe", "RUN", "dynamics", "--device", "tpu"], "device: 'tpu' is not allowed"),
        (["export", "RUN", "--out", "/proc/x"], "out: '/proc/x' cannot be written: No such file or directory"),
        (["export", "RUN", "--out", "FILE/x"], "out: 'FILE/x' cannot be written: Not a directory"),
        (["report", "RUN", "--out", "/proc/x"], "out: '/proc/x' cannot be written: No such file or directory"),
        (["report", "RUN", "--out", "FILE"], "out: 'FILE' cannot be written: Not a directory"),
        (
            ["report", "FILE"],
            "runs: 'FILE' is a file and not a folder; allowed: run folders, or folders that hold some",
        ),
        (
            ["train", "RUN"],
            "task: 'RUN' is a run folder and not a task; allowed: `playvirtual train --resume RUN`, or --like RUN",
        ),
        (["bench", "RUN"], "task: 'RUN' is a run folder and not a task; allowed: what `playvirtual list tasks` shows"),
        (
            ["train", "--config", "RUN"],
            "config: 'RUN' is a run's; allowed: a TOML file, or --like RUN (Python: like=…)",
        ),
        (
            ["train", "--config", "FILE"],
            "config: 'FILE' is a run's; allowed: a TOML file, or --like RUN (Python: like=",
        ),
        (["sweep", "toy", "--out", "/proc/x"], "out: '/proc/x' cannot be written: No such file"),
        (["sweep", "toy", "--out", "FILE", "--seeds", "1"], "out: 'FILE' cannot be written: File exists"),
        (["sweep", "toy", "--engine", "ray", "--cpus-per-run", "nan"], "cpus_per_run: nan is not allowed"),
    ],
)
def test_bad_input_about_a_run_is_one_line(
    words: list[str], message: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"RUN": str(trained), "FILE": str(trained / "config.json")}

    def filled(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    assert main([filled(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"playvirtual: error: {filled(message)}")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--latent=2000000000", r"networks with their optimizers [\d,]{6}"),
        ("--M=1000000", r"an update \d{3}"),
        ("--batch-size=100000000", r"an update [\d,]{5}"),
        ("--frame-stack=1900000000", r"one observation \d{3}"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_with_the_numbers(
    flag: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "toy/catch", flag, "--capacity=2000000000", "--device", "cpu", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    numbers = rf"about [\d,]+\.\d GiB are needed \(.*{part}.*\), [\d,]+\.\d GiB are free; what decides it: "
    assert re.match(f"playvirtual: error: memory: {numbers}", err), err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_video_that_cannot_be_written_is_one_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = trained.parent / "agent"
    assert main(["export", str(trained), "--out", str(exported)]) == 0
    (exported / "videos").write_text("in the way")
    assert main(["evaluate", str(exported), "--episodes", "1", "--video", "--device", "cpu"]) == 2
    assert "error: video: " in capsys.readouterr().err


@pytest.mark.slow
def test_folders_may_be_named_like_tasks(tmp_path: Path) -> None:
    """The resume command that such a run prints is one that the command line takes."""
    train = playvirtual("train", "--run-dir", "atari/x", "toy/reach", *QUICK, "--crop-size", "10", cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    resumed = playvirtual("train", "--resume", "atari/x", cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (
        0,
        "playvirtual: atari/x is finished already; more steps extend it\n",
    )
    # The flags are those of the run's task, which is not the default one.
    changed = playvirtual("train", "--crop-size", "9", "--resume", "atari/x", cwd=tmp_path)
    assert "another configuration (crop_size: 10 → 9); allowed: " in changed.stderr
