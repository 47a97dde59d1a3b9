"""The progress display of a run, also where it cannot be written."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from playvirtual.training.display.progress import Bar, Lines, Rate, SilentAfterError, per_second
from tests.cli.command import playvirtual
from tests.waiting import HANG


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0/s"), (0.4213, "0.421/s"), (3.0, "3/s"), (99.96, "100/s"), (6050.4, "6050/s"), (123456.0, "123456/s")],
)
def test_a_rate_is_a_plain_number(rate: float, text: str) -> None:
    assert per_second(rate) == text


def test_a_line_of_a_fast_run_has_no_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("toy/catch rl", total=10**9)
    lines.begin(0)
    lines.step(10**9, "return 1.0")
    said = capsys.readouterr().out
    assert re.fullmatch(r"toy/catch rl: 1000000000/1000000000 steps, \d+/s, 0:00:00 left, return 1\.0\n", said)


TRAIN = (
    "train toy/catch --device cpu --steps 160 --learning-starts 60 --K 2 --eval-episodes 4 --eval-every 0 "
    "--checkpoint-every 40"
)


def test_a_display_that_cannot_write_shows_nothing_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = SilentAfterError(Lines("run", total=100, every=0.0))
    lines.begin(0)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        lines.step(1, "")
        lines.step(2, "")
        lines.close()
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # closing flushes what could not be written
    lines.step(3, "")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["full", "pipe", pytest.param("closed", marks=pytest.mark.long)])
def test_a_run_continues_when_its_progress_cannot_be_written(where: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "playvirtual", *TRAIN.split(), "--run-dir", str(tmp_path / "run")]
    if where == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open("/dev/full", os.O_WRONLY)
    words = ["sh", "-c", 'exec "$@" >&-', "sh", *command] if where == "closed" else command
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=HANG)
    os.close(writing)
    reason = {"full": "No space left on device", "pipe": "Broken pipe", "closed": None}[where]
    said = f"playvirtual: error: stdout: cannot be written: {reason}\n"  # the summary at the end
    assert (done.returncode, done.stderr) == ((1, said) if reason else (0, ""))
    assert (tmp_path / "run" / "checkpoints" / "step-000000160").is_dir()
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_run_continues_when_its_messages_cannot_be_written(tmp_path: Path) -> None:
    words = [*TRAIN.split(), "--run-dir", "run", "--quiet", "--resume"]
    (tmp_path / "run").mkdir()
    # The messages are "no checkpoint yet, starting at step 0" and "is finished already".
    codes = [playvirtual(*words, cwd=tmp_path, stderr="/dev/full").returncode for _ in range(2)]
    assert codes == [0, 0]
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (140, "minatar/space_invaders playvirtual-every-step "),
        (100, "minatar/space_invaders playvirtual"),
        (80, "minatar/space_"),
        (64, "500/50000"),
    ],
)
def test_a_narrow_bar_keeps_steps_rate_and_time_left(width: int, shown: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    times = iter([0.0, 500 / 12_345])
    bar = Bar("minatar/space_invaders playvirtual-every-step", 50_000, console, now=lambda: next(times))
    bar.begin(0)
    bar.step(500, "return -1000.0, score -1000.0")
    bar.close()
    line = next(line for line in reversed(out.getvalue().splitlines()) if "eta" in line)
    assert shown in line
    assert "500/50000 " in line
    assert re.search(r" 12345/s .*eta [-0-9:]+ +return -1000.0, score -1000.0", line)


def test_the_time_of_an_evaluation_is_not_one_of_training() -> None:
    times = iter([0.0, 10.0, 10.0, 70.0])
    rate = Rate(0, now=lambda: next(times))
    assert rate(50) == 5.0
    rate.pause()
    assert rate(50) == 5.0  # a minute of evaluation later


def test_a_bar_shows_an_evaluation_in_a_row_of_its_own() -> None:
    out = io.StringIO()
    console = Console(file=out, width=110, force_terminal=True, color_system=None)
    bar = Bar("toy/catch playvirtual", 500, console)
    bar.begin(0)
    bar.step(100, "return 1.0")
    bar.evaluation(3, 8, 1234)
    bar._progress.refresh()
    during = out.getvalue().splitlines()[-2:]
    assert re.search(r"toy/catch playvirtual .* 100/500 ", during[0])
    assert re.search(r"           evaluation .* 3/8 .* 1234 steps played", during[1])
    bar.step(101, "return 1.0")
    bar.close()
    assert "evaluation" not in out.getvalue().splitlines()[-1]


def test_plain_lines_show_an_evaluation_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    for every in (0.0, 1e9):
        lines = SilentAfterError(Lines("run", total=100, every=every))
        lines.begin(0)
        lines.evaluation(3, 8, 1234)
    assert capsys.readouterr().out == "run: evaluation, 3/8 episodes ended, 1234 steps played\n"
