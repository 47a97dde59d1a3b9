"""What befalls runs, for real: damage, full disks, vanished folders, second processes, divergence, signals."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest

import playvirtual as pv
from playvirtual.cli import main
from playvirtual.training import checkpoint
from playvirtual.training.interrupts import Interrupts
from playvirtual.training.lock import locked
from playvirtual.training.session import Session
from playvirtual.training.session import run as run_session

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 160,
    "min_size": 60,
    "K": 2,
    "episodes": 4,
    "every": 0,
    "log_every": 30,
    "checkpoint_every": 40,
}
REACH = {**CATCH, "hidden": 16, "M": 2, "batch_size": 8, "auxiliary_batch_size": 4}
WORDS = [word for name, value in CATCH.items() for word in ("--" + name.replace("_", "-"), str(value))]


class At:
    """A display that does something to the world once so many steps are done."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.at, self.act = step, act

    def begin(self, done: int) -> None:
        pass

    def step(self, done: int, note: str) -> None:
        if done == self.at:
            self.act()

    def close(self) -> None:
        pass


def train_until(path: Path, step: int, act: Callable[[], object], **options: Any) -> pv.Run:
    return run_session(pv.build("toy/catch", **{**CATCH, **options}), path, At(step, act), resume=True)


def stopped(path: Path, step: int, **options: Any) -> None:
    """A run with a checkpoint every 40 steps that was interrupted after step + 1."""
    with pytest.raises(pv.Interrupted):
        train_until(path, step, lambda: signal.raise_signal(signal.SIGTERM), **options)


def playvirtual(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "playvirtual", *words], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing befell."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("whole") / "run", quiet=True, **CATCH).path


def finish_and_compare(path: Path, whole: Path) -> None:
    pv.resume(path, quiet=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()
    weights = [checkpoint.newest(run) / "weights.safetensors" for run in (path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def scribble(file: Path) -> None:
    file.write_text("[1, 2")


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("state.safetensors", flip, "its checksum does not match"),
        ("state.json", truncate, "its checksum does not match"),
        ("frames-*", flip, "its checksum does not match"),
        ("weights.safetensors", Path.unlink, "it is missing"),
        ("manifest.json", Path.unlink, "it cannot be read"),
        ("manifest.json", scribble, "it cannot be read"),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    name: str,
    damage: Callable[[Path], None],
    said: str,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped(tmp_path / "run", 89)
    newest = checkpoint.newest(tmp_path / "run")
    assert newest.name == "step-000000090"
    (file,) = newest.glob(name)
    damage(file)
    capsys.readouterr()
    finish_and_compare(tmp_path / "run", whole)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"playvirtual: checkpoint: '{file}' is damaged ({said}); using the one before"
    assert lines[1].endswith("going on at step 80")
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000000120", "step-000000160"]


def test_a_vanished_run_folder_stays_vanished(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(pv.RunError, match=r"run folder: '.*run' is gone"):
        train_until(path, 70, lambda: shutil.rmtree(path))
    assert not path.exists()


def test_a_folder_that_cannot_be_written(whole: Path, tmp_path: Path) -> None:
    """A file where the checkpoints should be: the line names the path and what is safe."""
    path, aside = tmp_path / "run", tmp_path / "aside"

    def replace() -> None:
        (path / "checkpoints").rename(aside)
        (path / "checkpoints").touch()

    with pytest.raises(pv.RunError) as caught:
        train_until(path, 70, replace)
    assert str(caught.value) == (
        f"cannot write '{path}/checkpoints': File exists; last good checkpoint: {path}/checkpoints/step-000000040; "
        f"to go on: playvirtual train --resume {path}"
    )
    (path / "checkpoints").unlink()
    aside.rename(path / "checkpoints")
    finish_and_compare(path, whole)


def test_a_folder_made_read_only_in_mid_run(whole: Path, tmp_path: Path) -> None:
    """Not even root writes into an immutable folder."""
    path = tmp_path / "run"

    def immutable(flag: str) -> bool:
        command = ["chattr", flag, str(path / "checkpoints")]
        return shutil.which("chattr") is not None and subprocess.run(command, capture_output=True).returncode == 0

    path.mkdir()
    (path / "checkpoints").mkdir()
    if not immutable("+i"):
        pytest.skip("no immutable folders here (needs root and a file system that knows them)")
    immutable("-i")
    shutil.rmtree(path)
    try:
        with pytest.raises(pv.RunError, match=r"Operation not permitted; last good checkpoint: .*000040;"):
            train_until(path, 70, lambda: immutable("+i"))
    finally:
        immutable("-i")
    finish_and_compare(path, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A tmpfs that holds two checkpoints and not three, and a function that mounts it anew with other options."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if shutil.which("mount") is None or not mount("size=1m"):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield disk, lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(whole: Path, small_disk: tuple[Path, Callable[[str], None]]) -> None:
    disk, remount = small_disk
    one = sum(f.stat().st_size for f in checkpoint.newest(whole).iterdir())
    remount(f"size={int(2.6 * one / 1024)}k")
    path = disk / "run"
    result = playvirtual("train", "toy/catch", *WORDS, "--run-dir", str(path), "--quiet")
    assert result.returncode == 1
    assert result.stderr.startswith(f"playvirtual: error: cannot write '{path}")
    assert "No space left on device; last good checkpoint: " in result.stderr
    assert result.stderr.count("\n") == 1
    kept = checkpoint.complete(path)
    assert [p.name for p in kept] == ["step-000000080", "step-000000120"]
    assert f"last good checkpoint: {kept[-1]}; to go on: playvirtual train --resume {path}\n" in result.stderr
    for each in kept:
        checkpoint.verify(each)
    remount("ro")
    refused = playvirtual("train", "--resume", str(path), "--quiet")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"run_dir: '{path}' cannot be written: Read-only file system" in refused.stderr
    remount(f"rw,size={int(5 * one / 1024)}k")
    finish_and_compare(path, whole)


def test_a_run_folder_where_none_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pv.InputError, match=r"run_dir: .* cannot be made: Not a directory"):
        pv.train("toy/catch", run_dir=tmp_path / "file" / "run", quiet=True, **CATCH)


def test_a_second_process_is_refused(whole: Path, tmp_path: Path) -> None:
    stopped(tmp_path / "run", 50)
    with locked(tmp_path / "run"):
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        second = playvirtual("train", "--resume", str(tmp_path / "run"), "--quiet")
        assert second.returncode == 2
        assert f"run_dir: '{tmp_path / 'run'}' is in use by process {os.getpid()} on " in second.stderr
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    finish_and_compare(tmp_path / "run", whole)


@pytest.mark.parametrize(("task", "options"), [("toy/catch", CATCH), ("toy/reach", REACH)])
def test_divergence_stops_the_run_and_names_the_loss(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A learning rate of 10³⁰ takes any network out of the numbers within a few updates."""
    path = tmp_path / "run"
    with pytest.raises(pv.RunError, match=r"^loss.*: not finite at step \d+ \(update \d+\); its batch is in") as caught:
        pv.train(task, run_dir=path, quiet=True, **{**options, "learning_rate": 1e30})
    assert f"last good checkpoint: {path}/checkpoints/step-000000040; to go on: playvirtual" in str(caught.value)
    record = json.loads((path / "nonfinite.json").read_text())
    assert record["losses"]
    assert 60 <= record["step"] <= 90
    rate = pv.build(task).agent.updates_per_step
    assert int((record["step"] - 59) * rate) == record["update"] or record["update"] == 1
    kinds = {"toy/catch": {"sequences"}, "toy/reach": {"transitions", "windows"}}[task]
    assert record["positions"].keys() == kinds
    assert all(0 <= p < 90 for positions in record["positions"].values() for p in positions)
    assert [p.name for p in checkpoint.complete(path)] == ["step-000000040"]
    checkpoint.verify(checkpoint.newest(path))


class Fragile(gymnasium.Env[Any, Any]):
    """Breaks down at the step that it was made to break down at."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    breaks_at, steps = 0, 0
    error: Exception = ValueError("the rope\nis torn")

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((10, 10, 1), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Fragile.steps += 1
        if Fragile.steps == Fragile.breaks_at:
            raise Fragile.error
        return np.zeros((10, 10, 1), np.uint8), 0.0, False, False, {}


FRAGILE = [*WORDS, "--image-size", "10", "--channels", "8", "--filters", "3", "--strides", "1", "--hidden", "16"]
FRAGILE += ["--batch-size", "4", "--M", "1", "--max-episode-frames", "40", "--quiet"]


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    if "Fragile-v0" not in gymnasium.registry:
        gymnasium.register("Fragile-v0", Fragile)
    monkeypatch.setattr(Fragile, "steps", 0)


@pytest.mark.usefixtures("fragile")
def test_an_environment_that_breaks_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training and where it is played again: the traceback, then what is safe and how to go on."""
    path = tmp_path / "run"
    monkeypatch.setattr(Fragile, "breaks_at", 90)
    assert main(["train", "gym/Fragile-v0", *FRAGILE, "--run-dir", str(path)]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert "in step\n    raise Fragile.error" in said
    line = (
        f"playvirtual: error: ValueError: the rope is torn; last good checkpoint: {path}/checkpoints/step-000000080; "
        f"to go on: playvirtual train --resume {path}"
    )
    assert said.splitlines()[-1] == line
    monkeypatch.setattr(Fragile, "breaks_at", Fragile.steps + 1)
    with pytest.raises(pv.RunError, match=r"^ValueError: the rope is torn; .*000080; to go on") as caught:
        pv.resume(path, quiet=True)
    assert caught.value.__cause__ is Fragile.error
    pv.resume(path, quiet=True)


@pytest.mark.usefixtures("fragile")
@pytest.mark.parametrize(("at", "safe"), [(3, "there is no checkpoint yet"), (90, "last good checkpoint: ")])
def test_memory_that_runs_out_in_mid_run(
    at: int, safe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Fragile, "breaks_at", at)
    monkeypatch.setattr(Fragile, "error", MemoryError("out of memory"))
    assert main(["train", "gym/Fragile-v0", *FRAGILE, "--run-dir", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("playvirtual: error: memory: out of memory; what decides it: ")
    assert f"; {safe}" in said
    assert said.count("\n") == 1


def test_a_signal_that_cannot_be_confirmed_leaves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C under `2>&1 | tee` ends tee as well: the handler's word has no reader."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "__stderr__", full)
        stopped(tmp_path / "run", 50)
    assert checkpoint.newest(tmp_path / "run").name == "step-000000051"


class RunsCode:
    """What an attacker would put into a checkpoint."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "weights.safetensors", "frames-*"])
def test_a_checkpoint_that_would_run_code_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    """A pickle with a valid checksum is not damage but an attack; nothing of it is executed."""
    stopped(tmp_path / "run", 89)
    marker = tmp_path / "executed"
    evil = pickle.dumps(RunsCode(marker))
    newest = checkpoint.newest(tmp_path / "run")
    (file,) = newest.glob(name)
    file.write_bytes(evil)
    sums = json.loads((newest / "manifest.json").read_text())
    sums[file.name] = hashlib.sha256(evil).hexdigest()
    (newest / "manifest.json").write_text(json.dumps(sums))
    checkpoint.verify(newest)
    if name == "weights.safetensors":
        with pytest.raises(pv.InputError, match="is no safetensors file"):
            pv.load(tmp_path / "run")
    finish_and_compare(tmp_path / "run", whole)
    assert not marker.exists()
    pickle.loads(evil)  # the test's own check: the bytes do run code where they are unpickled
    assert marker.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_a_checkpoint_and_the_command_to_go_on(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "playvirtual", "train", "toy/catch", "--run-dir", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen([*words, "--log-every", "10"], stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "metrics.jsonl")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.splitlines()[-1] == (
        f"playvirtual: stopped by {number.name}; to go on: playvirtual train --resume {tmp_path / 'run'}"
    )
    checkpoint.verify(checkpoint.newest(tmp_path / "run"))


@pytest.mark.parametrize("line", range(12))
def test_wherever_in_a_step_a_signal_comes_what_it_stops_is_saved(line: int, tmp_path: Path) -> None:
    """SIGTERM before the so-manieth line of the loop that runs once 5 steps are done; 8 or so make a plain step."""
    passed: list[int] = []

    def count(frame: FrameType, event: str, _: object) -> Any:
        training = frame.f_locals.get("training")
        if event == "line" and training is not None and training.step >= 5:
            passed.append(training.step)
            if len(passed) == line + 1:
                signal.raise_signal(signal.SIGTERM)
        return count

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: count if frame.f_code is Session.run.__code__ else None)
    try:
        with pytest.raises(pv.Interrupted):
            pv.train("toy/catch", run_dir=tmp_path / "run", quiet=True, **{**CATCH, "checkpoint_every": 0})
    finally:
        sys.settrace(before)
    newest = checkpoint.newest(tmp_path / "run")
    assert newest.name == f"step-{passed[-1]:09d}"
    assert passed[-1] - passed[line] in (0, 1)


def test_a_second_signal_exits_at_once() -> None:
    program = (
        "import time\nfrom playvirtual.training.interrupts import Interrupts\n"
        "with Interrupts() as stop:\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143
    assert time.monotonic() - began < 5
    process.communicate()


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
    reader.join(60)
    os.close(ours)
    assert process.wait(timeout=60) == 129
    checkpoint.verify(checkpoint.newest(tmp_path / "run"))


def drain(terminal: int, until: Path) -> None:
    """Reads what is printed until that file is there, so that the printing never waits."""
    while not until.exists():
        os.read(terminal, 1 << 16)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


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
    assert process.wait(timeout=60) == 130
    os.close(theirs)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"\x1b[?25h" in said
    assert said.endswith(b"playvirtual: ended at once; what is left is the last checkpoint\r\n")


def test_signal_handlers_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopped(tmp_path / "run", 20)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def wait_for(file: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not appear"
        time.sleep(0.02)
