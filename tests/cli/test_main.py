"""The entry point: commands, help, errors of one line and exit codes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.messages import replace_unencodable
from tests.cli.command import QUICK, started
from tests.waiting import HANG


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
            ["train", "toy/catch", "--learning-starts", "3"],
            "learning_starts: 3 is not allowed; allowed: more than 10, ",
        ),
        (["train", "toy/catch", "--capacity", "6"], "capacity: 6 is not allowed; allowed: "),
        (["train", "--K", "-3", "toy/reach"], "K: -3 is not allowed; allowed: 0 or more"),
        (["train", "toy/catch", "--steps"], "steps: no value is given; allowed: a whole number"),
        (
            ["train", "toy/catch", "--video-at-evaluation"],
            "video_at_evaluation: no value is given; allowed: true, false",
        ),
        (["train", "toy/catch", "--compile", "--K", "3"], "compile: no value is given; allowed: off, cudagraph, full"),
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
            "flags that started the run, or `playvirtual train --resume RUN`",
        ),
        (["train", "--run-dir", "atari/x"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
        (["train", "--lambda-perd", "1", "toy/catch"], "option: '--lambda-perd' is not known"),
        (
            ["train", "--run-dir", "atari/x", "toy/catch", "--crop-size", "8"],
            "option: 'crop_size' is not one of toy/catch, which has discrete actions; allowed: on tasks with",
        ),
        (["train", "--encoder-tanh", "true"], "task: none is given"),
        (
            ["bench", "toy/reach", "--atoms=3"],
            "option: 'atoms' is not one of toy/reach, which has continuous actions; allowed: on tasks with discrete",
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
        (["sweep", "--out", "dmc/x", "dmc100k", "--v-max", "3"], "option: 'v_max' is not one of dmc/"),
        (["train", "toy/catch", "--resume", "x"], "resume: 'x' is given beside a task or --run-dir"),
        (["train", "toy/catch", "--log", "tensorbord"], "log: 'tensorbord' is not known; did you mean 'tensorboard'?"),
        (["train", "toy/catch", "--kernel-sizes", "20"], "kernel_sizes: (20,) with strides (1,) do not fit into"),
        (["train", "toy/reach", "--crop-size", "2"], "kernel_sizes: (3,) with strides (1,) do not fit into"),
        (
            ["train", "--task", "toy/catch"],
            "option: '--task' is not known; allowed: the task alone, as in `playvirtual",
        ),
        (["bench", "--task=toy/catch"], "option: '--task' is not known; allowed: the task alone, as in `playvirtual b"),
        (["train", "toy/catch", "--run-dir", ""], "run_dir: '' is not allowed; allowed: the path of a folder"),
        (["train", "toy/catch", "--run-dir", "/proc/x"], "run_dir: '/proc/x' cannot be made: No such file"),
        (["train", "CartPole-v1"], "task: 'CartPole-v1' has no family; did you mean 'gym/CartPole-v1'?"),
        (["train", "PongNoFrameskip-v4"], "task: 'PongNoFrameskip-v4' has no family; did you mean 'atari/pong'?"),
        (["train", "ALE/MsPacman-v5"], "task family: 'ALE' is not known; did you mean 'atari/ms_pacman'?"),
        (["train", "MinAtar/SpaceInvaders-v1"], "task family: 'MinAtar' is not known; did you mean 'minatar/space_inv"),
        (["train", "toy/catch", "--lr", "0.1"], "option: '--lr' is not known; did you mean '--learning-rate'?"),
        (["train", "--like", "nowhere"], "like: 'nowhere' is not there; allowed: a folder that"),
        (["evaluate", "toy/catch"], "run: 'toy/catch' is not there; did you mean 'playvirtual/toy-catch'?"),
        (["evaluate", "nowhere"], "run: 'nowhere' is not there; allowed: a folder that"),
        (["export", "nowhere", "--out", "agent"], "run: 'nowhere' is not there; allowed: a folder that"),
        (["list", "games"], "list: 'games' is not known"),
        (["trian"], "command: 'trian' is not known; did you mean 'train'? allowed: bench, evaluate, export, "),
        (
            ["--quiet"],
            "option: '--quiet' stands before a command; allowed: after it, as in `playvirtual train … --quiet`",
        ),
        (["export", "x"], "out: none is given; allowed: --out DIR, a folder that does not exist yet"),
        (["evaluate", "--video"], "run: none is given; allowed: RUN, a run folder, an export, or the name of a built-"),
        (["probe", "x"], "probe: none is given; allowed: dynamics, complexity"),
        (["--quite"], "option: '--quite' is not known; allowed: "),
        (
            ["bench", "toy/catch", "--run-dir", "x"],
            "option: '--run-dir' is one of `playvirtual train` and not of `playvirtual bench`; allowed: what `play",
        ),
        (["bench", "--run-dir", "x", "toy/catch"], "option: '--run-dir' is one of `playvirtual train` and not of "),
        (["evaluate", "nowhere", "--steps", "3"], "option: '--steps' is one of `playvirtual train, bench, sweep` and "),
        (
            ["evaluate", "x", "--eval-episodes", "3"],
            "option: '--eval-episodes' is not known; did you mean '--episodes'?",
        ),
        (["sweep", "toy", "--seed", "3"], "option: '--seed' is not known; did you mean '--seeds'?"),
        (["bench"], "task: none is given; allowed: what `playvirtual list tasks` shows"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"playvirtual: error: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_and_slips_do_not_wait_for_pytorch(tmp_path: Path) -> None:
    code = "import sys; from playvirtual.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code, "train", "toy/cach"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert "did you mean 'toy/catch'?" in done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_a_process_ends_with_the_exit_code_of_its_command(tmp_path: Path) -> None:
    result = started("train", "toy/catch", "--K", "-3", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "playvirtual: error: K: -3 is not allowed; allowed: 0 or more\n"


def test_alone_it_lists_its_commands(tmp_path: Path) -> None:
    alone = started(cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, "")
    for line in ("train an agent and score it", "score a trained agent again", "list tasks, methods, experiments"):
        assert line in alone.stderr
    assert alone.stderr == started("--help", cwd=tmp_path).stdout


def test_help_lists_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    listed = re.findall(r"^  (\w+) +[a-z]", shown.partition("options:")[0], re.MULTILINE)
    assert listed == [
        "train",
        "evaluate",
        "video",
        "export",
        "push",
        "pull",
        "sweep",
        "report",
        "probe",
        "bench",
        "list",
    ]
    assert shown.index("one agent:") < shown.index("a model hub:") < shown.index("studies:") < shown.index("examples:")


def test_it_tells_its_version(tmp_path: Path) -> None:
    told = started("--version", cwd=tmp_path)
    assert (told.returncode, told.stdout, told.stderr) == (0, f"playvirtual {pv.__version__}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["train", "toy/catch", *QUICK], ["train", "--help"], ["list", "experiments"]])
def test_what_the_locale_cannot_encode_is_replaced(words: list[str], tmp_path: Path) -> None:
    shown = started(*words, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "?" in shown.stdout


def test_a_stream_replaces_what_it_cannot_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(binary, encoding="ascii"))
    replace_unencodable()
    print("±", flush=True)
    assert binary.getvalue() == b"?\n"


def shown_by(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints that exits by itself, as --help does."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_defaults_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    pong = shown_by(["train", "atari/pong", "--help"], capsys)
    catch = shown_by(["train", "toy/catch", "--help"], capsys)
    assert "--noisy-sigma" in pong
    assert "(default: 100000)" in pong
    assert "(default: false)" in pong
    assert "(default: true)" in pong
    assert "(default: False)" not in pong
    assert "(default: None)" not in pong
    assert pong != catch
    assert shown_by(["train", "--run-dir", "minatar/x", "toy/catch", "--help"], capsys) == catch
    for command in ("train", "bench"):  # without a task: no options that depend on it, and how to see them
        short = shown_by([command, "--help"], capsys)
        assert f"`playvirtual {command} TASK --help` adds the options of environment, objective, agent," in short
        assert "--steps N" in short
        assert "--noisy-sigma" not in short
        assert "replay:" not in short
    assert "--crop-size" in shown_by(["sweep", "--seeds", "2", "toy", "--suite", "toy/reach", "--help"], capsys)


@pytest.mark.parametrize(
    ("words", "title", "defaults"),
    [
        (["atari/pong"], "agent: the discrete agent", {"K": "9", "M": "2A", "hidden": "256"}),
        (["atari/pong", "--method", "spr"], "agent: the discrete agent", {"K": "9", "M": "0"}),
        (["atari/pong", "--preset", "reference"], "agent: the discrete agent", {"noisy-sigma": "0.1"}),
        (["atari/pong", "--method", "otr"], "agent: overtrained Rainbow", {"K": "0", "M": "0", "hidden": "512"}),
        (["atari/pong", "--method", "curl-virtual"], "agent: CURL for discrete actions", {"K": "9", "M": "2A"}),
        (["toy/reach", "--method", "drq"], "agent: DrQ for continuous actions", {"K": "0", "M": "0", "views": "2"}),
        (["toy/reach", "--method", "sac-ae"], "agent: SAC+AE", {"K": "0", "M": "0", "latent-weight": "1e-06"}),
    ],
)
def test_help_shows_the_defaults_of_the_method(
    words: list[str], title: str, defaults: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And names agents as their papers do."""
    text = shown_by(["train", *words, "--help"], capsys)
    method = words[words.index("--method") + 1] if "--method" in words else "playvirtual"
    assert f"Defaults shown are those of {words[0]} with {method}; other tasks and methods have others." in text
    assert f"\n{title}:\n" in text
    for flag, value in defaults.items():
        shown = text.partition(f"\n  --{flag} ")[2].partition("\n  --")[0]
        assert f"(default: {value})" in " ".join(shown.split()), flag


def test_rows_of_one_baseline_in_a_sweep_take_its_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["sweep", "baselines", "--suite", "minatar/breakout", "--seeds", "1", "--dry-run", "--out", str(tmp_path)]
    given = ["--contrast-weight", "0.5"]
    assert main([*words, "--rows", "CURL", *given]) == 0
    assert "CURL" in capsys.readouterr().out
    assert main([*words, "--rows", "curl,drq", *given]) == 2
    assert "'contrast_weight' is not one of the agent drq-dqn; allowed: with curl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "video", "export", "push", "pull", "bench", "list", "sweep", "probe", "report"]
)
def test_help_of_every_command_has_its_usage_and_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_by([command, "--help"], capsys)
    assert text.startswith(f"usage: playvirtual {command} ")
    assert f"\n  playvirtual {command} " in text


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks"]) == 0
    tasks = capsys.readouterr().out.split()
    assert {"atari/pong", "minatar/breakout", "toy/catch", "toy/reach"} <= set(tasks)
    assert main(["list", "methods"]) == 0
    methods = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in methods][:2] == ["rl", "spr"]
    assert all(len(line.split()) > 2 for line in methods)
