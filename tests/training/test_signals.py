"""Signals: the first one stops a run at a checkpoint, a second one ends the process at once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint
from playvirtual.training import runner, trainer
from playvirtual.training.interrupts import Interrupts
from tests.training.interrupting import CATCH, stopped
from tests.waiting import HANG, wait_until


@pytest.fixture(autouse=True)
def _hangups_count() -> Iterator[None]:
    """Under `nohup make test` hang-ups are ignored, here and in what is started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_signal_that_cannot_be_confirmed_leaves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C under `2>&1 | tee` ends tee as well: the handler's word has no reader."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "__stderr__", full)
        stopped(tmp_path / "run", 50)
    assert checkpoint.newest(tmp_path / "run").name == "step-000000051"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_a_checkpoint_and_the_command_to_resume(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "playvirtual", "train", "toy/catch", "--run-dir", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen([*words, "--log-every", "10"], stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, "the first line of metrics.jsonl")
    process.send_signal(number)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == code
    assert said.splitlines()[-1] == (
        f"playvirtual: stopped by {number.name}; to resume: playvirtual train --resume {tmp_path / 'run'}"
    )
    checkpoint.verify(checkpoint.newest(tmp_path / "run"))


@pytest.mark.parametrize("line", range(0, 60, 5))
def test_a_signal_at_any_line_of_a_step_stops_at_a_saved_step(line: int, tmp_path: Path) -> None:
    """SIGTERM before one of the first 60 lines of the trainer and the runner that run once 5 steps are done."""
    files, steps = {trainer.__file__, runner.__file__}, []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        owner = frame.f_locals.get("self")
        owner = getattr(owner, "trainer", owner)
        if event == "line" and isinstance(owner, trainer.Trainer) and getattr(owner, "step", 0) >= 5:
            steps.append(owner.step)
            if len(steps) == line + 1:
                signal.raise_signal(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: trace if frame.f_code.co_filename in files else None)
    try:
        with pytest.raises(pv.Interrupted):
            pv.train("toy/catch", run_dir=tmp_path / "run", quiet=True, **{**CATCH, "checkpoint_every": 0})
    finally:
        sys.settrace(before)
    newest = checkpoint.newest(tmp_path / "run")
    assert newest.name == f"step-{steps[-1]:09d}"
    assert steps[-1] - steps[line] in (0, 1)


def test_a_second_signal_exits_at_once() -> None:
    program = (
        "import time\nfrom playvirtual.training.interrupts import Interrupts\n"
        "with Interrupts() as stop:\n    print('ready', flush=True)\n    while True: time.sleep(1)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline() + process.stderr.readline()
    assert said.endswith(b"a second signal stops at once\n")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)  # at once: without it the process would never end
    assert process.wait(timeout=HANG) == 143
    process.communicate()


@pytest.mark.slow
def test_a_closed_terminal_leaves_a_checkpoint(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "playvirtual", "train", "toy/catch", "--run-dir", str(tmp_path / "run")]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    # As a shell in a terminal does it: what is started is told when the terminal goes.
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", take, *words, "--log-every", "10"], start_new_session=True, **streams
    )
    os.close(theirs)
    reader = threading.Thread(target=drain, args=(ours, tmp_path / "run" / "metrics.jsonl"))
    reader.start()
    reader.join(HANG)
    assert not reader.is_alive()
    os.close(ours)
    assert process.wait(timeout=HANG) == 129
    checkpoint.verify(checkpoint.newest(tmp_path / "run"))


def drain(terminal: int, until: Path) -> None:
    """Reads what is printed until that file is there, so that the printing never waits."""
    while not until.exists():
        os.read(terminal, 1 << 16)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.received is None


def test_a_second_hangup_does_not_end_it_at_once() -> None:
    """A terminal that is closed says so itself, by its shell, and when the shell ends."""
    with Interrupts() as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stop.received is signal.SIGHUP


def test_what_ends_at_once_gives_the_terminal_its_cursor() -> None:
    ours, theirs = os.openpty()
    program = (
        "import signal\nfrom playvirtual.training.interrupts import Interrupts\n"
        "with Interrupts():\n    signal.raise_signal(2)\n    signal.raise_signal(2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs)
    assert process.wait(timeout=HANG) == 130
    os.close(theirs)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"\x1b[?25h" in said
    assert said.endswith(b"playvirtual: stopped at once; the run can be resumed from its last checkpoint\r\n")


def test_signal_handlers_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopped(tmp_path / "run", 20)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
