"""The command line as a person meets it: real processes, exit codes, one-line errors."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.cli import main

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


def playvirtual(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "playvirtual", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "atari/pomg"], "task: 'atari/pomg' is not known; did you mean 'atari/pong'?"),
        (["train", "pong"], "task: 'pong' has no family; did you mean 'atari/pong'?"),
        (
            ["train", "atari"],
            "task: 'atari' is a family and not a task; allowed: what `playvirtual list tasks` shows, ",
        ),
        (["train", "minatar/pong"], "task: 'minatar/pong' is not known; did you mean 'atari/pong'? allowed: minatar/"),
        (["train", "toy/catch", "--k", "3"], "option: '--k' is not known; did you mean '--K'?"),
        (["train", "toy/catch", "--seed", "99999999999999999999"], "seed: 99999999999999999999 is not allowed; "),
        (["sweep", "minatar", "--method", "spr"], "option: '--method' is not one of a sweep, "),
        (["evaluate", "."], "run: '.' is not a run folder (it has no config.json); "),
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
        (["train", "toy/catch", "--steps"], "steps: no value is given; allowed: a whole number"),
        (
            ["train", "toy/catch", "--video-at-evaluation"],
            "video_at_evaluation: no value is given; allowed: true, false",
        ),
        (["train", "toy/catch", "--capture", "--K", "3"], "capture: no value is given; allowed: off, graph, compile"),
        (["train", "toy/catch", "--method"], "method: no value is given; allowed: one of rl, spr, "),
        (["train", "toy/catch", "extra"], "argument: 'extra' is one too many"),
        (["train", "toy/catch", "--device", "cuda:99"], "device: 'cuda:99' is not there"),
        (["train"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
        (["train", "--resume", "nowhere"], "run: 'nowhere' is not there; allowed: a folder that"),
        (["train", "--resume", "toy/run1"], "run: 'toy/run1' is not there"),
        (
            ["train", "--resume", "toy/catch", "--steps", "2000"],
            "resume: 'toy/catch' is a task and not a run folder; allowed: `playvirtual train toy/catch --resume`, or ",
        ),
        (
            ["train", "--resume"],
            "resume: neither a task nor a run folder is given; allowed: `playvirtual train TASK --resume` with the "
            "flags that began the run, or `playvirtual train --resume RUN`",
        ),
        (["train", "--run-dir", "atari/x"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
        (["train", "--lambda-perd", "1", "toy/catch"], "option: '--lambda-perd' is not known"),
        (
            ["train", "--run-dir", "atari/x", "toy/catch", "--crop-size", "8"],
            "option: '--crop-size' is not one of toy/catch, which has discrete actions; allowed: on tasks with",
        ),
        (["train", "--encoder-tanh", "true"], "task: none is given"),
        (
            ["bench", "toy/reach", "--atoms=3"],
            "option: '--atoms' is not one of toy/reach, which has continuous actions; allowed: on tasks with discrete",
        ),
        (
            ["sweep", "toy", "--suite", "toy/catch,toy/reach", "--atoms", "3"],
            "option: 'atoms' is not one of toy/reach, ",
        ),
        (
            ["sweep", "toy", "--suite", "toy/reach,toy/catch", "--capacity", "8"],
            "toy/catch: capacity: 8 is not allowed; ",
        ),
        (["bench", "--json", "toy/x.json"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
        (["sweep", "--out", "dmc/x", "dmc100k", "--v-max", "3"], "option: '--v-max' is not one of dmc/"),
        (["train", "toy/catch", "--resume", "x"], "resume: 'x' is given beside a task or --run-dir"),
        (["train", "toy/catch", "--log", "tensorbord"], "log: 'tensorbord' is not known; did you mean 'tensorboard'?"),
        (["train", "toy/catch", "--filters", "20"], "filters: (20,) with strides (1,) do not fit into a picture of 10"),
        (["train", "toy/reach", "--crop-size", "2"], "filters: (3,) with strides (1,) do not fit into a picture of 2"),
        (["train", "toy/catch", "--run-dir", "/proc/x"], "run_dir: '/proc/x' cannot be made: No such file"),
        (["evaluate", "nowhere"], "run: 'nowhere' is not there; allowed: a folder that"),
        (["export", "nowhere", "--out", "agent"], "run: 'nowhere' is not there; allowed: a folder that"),
        (["list", "games"], "list: 'games' is not known"),
        (["trian"], "command: 'trian' is not known; did you mean 'train'? allowed: bench, evaluate, export, "),
        (["--quiet"], "option: '--quiet' is not known; allowed: "),
        (["bench"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
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
    assert "over 7 episodes\n" in scored.stdout
    assert "over 1 episode\n" in playvirtual("evaluate", str(run), "--episodes", "1", cwd=tmp_path).stdout
    assert f"video: {run}/videos/evaluation-seed-1." in scored.stdout
    assert len(list((run / "videos").iterdir())) == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "toy/catch", *QUICK, "--device", "cpu", "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "RUN", "--seed", "-1"], "seed: -1 is not allowed; allowed: 0 to 2147483647"),
        (["evaluate", "RUN", "--episodes", "0"], "episodes: 0 is not allowed; allowed: 1 or more"),
        (["evaluate", "RUN", "--device", "tpu"], "device: 'tpu' is not allowed; allowed: auto, cpu, cuda, cuda:N"),
        (["probe", "RUN", "dynamics", "--device", "tpu"], "device: 'tpu' is not allowed"),
        (["export", "RUN", "--out", "/proc/x"], "out: '/proc/x' cannot be written: No such file or directory"),
        (["export", "RUN", "--out", "FILE/x"], "out: 'FILE/x' cannot be written: Not a directory"),
        (["report", "RUN", "--out", "/proc/x"], "out: '/proc/x' cannot be written: No such file or directory"),
        (["report", "RUN", "--out", "FILE"], "out: 'FILE' cannot be written: Not a directory"),
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


def test_what_does_not_fit_into_memory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "toy/catch", "--latent", "2000000000", "--device", "cpu", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("playvirtual: error: memory: ")
    assert "can't allocate memory" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_film_that_cannot_be_written_is_one_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = trained.parent / "agent"
    assert main(["export", str(trained), "--out", str(exported)]) == 0
    (exported / "videos").write_text("in the way")
    assert main(["evaluate", str(exported), "--episodes", "1", "--video", "--device", "cpu"]) == 2
    assert "error: video: " in capsys.readouterr().err


def test_folders_may_be_named_like_tasks(tmp_path: Path) -> None:
    """The resume command that such a run prints is one that the command line takes."""
    train = playvirtual("train", "--run-dir", "atari/x", "toy/reach", *QUICK, "--crop-size", "10", cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    resumed = playvirtual("train", "--resume", "atari/x", cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "playvirtual: atari/x is finished already\n")
    # The flags are those of the run's task, which is not the default one.
    changed = playvirtual("train", "--crop-size", "9", "--resume", "atari/x", cwd=tmp_path)
    assert "another configuration (crop_size: 10 → 9); allowed: " in changed.stderr


def test_alone_it_lists_its_commands(tmp_path: Path) -> None:
    alone = playvirtual(cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, "")
    for line in ("train an agent and score it", "score a trained agent again", "what there is to name"):
        assert line in alone.stderr
    assert alone.stderr == playvirtual("--help", cwd=tmp_path).stdout


def test_it_tells_its_version(tmp_path: Path) -> None:
    told = playvirtual("--version", cwd=tmp_path)
    assert (told.returncode, told.stdout, told.stderr) == (0, f"playvirtual {pv.__version__}\n", "")


@pytest.mark.parametrize("words", [["train", "toy/catch", *QUICK], ["train", "--help"], ["list", "experiments"]])
def test_what_the_locale_cannot_show_is_replaced(words: list[str], tmp_path: Path) -> None:
    shown = playvirtual(*words, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "?" in shown.stdout


def test_the_demo_replaces_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from playvirtual import demo

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(demo, "build", lambda *_, **__: sys.exit(print("±")))
    with pytest.raises(SystemExit):
        demo.main()
    stream.flush()
    assert stream.buffer.getvalue() == b"?\n"  # type: ignore[attr-defined]


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
    assert "(default: false)" in pong
    assert "(default: true)" in pong
    assert "(default: False)" not in pong
    assert pong != catch
    before = playvirtual("train", "--run-dir", "minatar/x", "toy/catch", "--help", cwd=tmp_path).stdout
    assert before == catch
    assert "task" in playvirtual("bench", "--help", cwd=tmp_path).stdout
    reach = playvirtual("sweep", "--seeds", "2", "toy", "--suite", "toy/reach", "--help", cwd=tmp_path).stdout
    assert "--crop-size" in reach
