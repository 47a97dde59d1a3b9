"""How commands end that are interrupted, have nowhere to write, or no folder to work in: in one line."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.study.engines.engine import Outcome
from playvirtual.study.sweep.grids import Job
from playvirtual.study.sweep.sweep import sweep
from tests.hostile.conftest import Commands
from tests.waiting import HANG, wait_until

pytestmark = pytest.mark.slow(seconds=4)


def started(*words: str, cwd: Path, **options: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "playvirtual", *words],
        cwd=cwd,
        stdout=options.get("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
    )


def is_in_torch(process: subprocess.Popen[str]) -> bool:
    """Whether the process has begun to load PyTorch, long before it is done with it."""
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def plays(process: subprocess.Popen[str]) -> bool:
    """Whether the process has computed for longer than its imports take."""
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11]
    return int(ticks) / os.sysconf("SC_CLK_TCK") > 5.0


@pytest.mark.parametrize("moment", ["importing", "working"])
def test_two_interrupts_in_a_row_end_a_probe_without_a_traceback(moment: str, commands: Commands) -> None:
    commands.copy("catch")
    words = ["probe", "run", "dynamics", "--transitions=1000000000", "--device=cpu"]
    process = started(*words, cwd=commands.folder)
    wait_until(lambda: is_in_torch(process), "PyTorch is loaded")
    if moment == "working":
        wait_until(lambda: plays(process), "it plays")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode in (130, -signal.SIGINT)
    assert said in ("", "playvirtual: interrupted\n")


def test_a_second_interrupt_within_moments_ends_a_training_without_a_traceback(commands: Commands) -> None:
    process = started("train", "toy/catch", "--run-dir=new", "--device=cpu", "--quiet", cwd=commands.folder)
    wait_until(lambda: (commands.folder / "new" / "metrics.jsonl").exists(), "it trains")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "stopping after this step" in said


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m playvirtual train toy/catch"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HANG)
    assert ended.returncode == 2
    assert ended.stderr == (
        "playvirtual: error: working directory: it is not there any more (No such file or directory); allowed: a "
        "folder that exists\n"
    )


def test_help_that_nothing_reads_ends_without_a_word(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = started("train", "--help", cwd=tmp_path, stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=HANG)[1] == ""


def test_an_export_that_fails_leaves_nothing_behind(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands.copy("catch")

    def full(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(pv.InputError, match=r"out: .* cannot be written: No space left on device"):
        pv.export(run, tmp_path / "new" / "folders" / "agent")
    assert not (tmp_path / "new").exists()


class Failing:
    """An engine whose runs end without having been able to write anything."""

    def __init__(self) -> None:
        self.started: list[Job] = []

    def room(self) -> bool:
        return True

    def start(self, job: Job) -> None:
        self.started.append(job)

    def running(self) -> list[Job]:
        return self.started

    def wait(self, seconds: float) -> list[Outcome]:
        ended, self.started = self.started, []
        return [Outcome(job, "exit code 1 without any output") for job in ended]

    def stop(self) -> None:
        pass


class Quiet:
    """A display that shows nothing."""

    def begin(self, total: int, skipped: int) -> None: ...

    def started(self, job: Job, attempt: int) -> None: ...

    def ended(self, job: Job, error: str | None, *, again: bool) -> None: ...

    def refresh(self, left: str) -> None: ...

    def close(self) -> None: ...


def test_a_full_disk_is_named_by_a_sweep(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "rest").write_bytes(bytes(200_000))
        job = Job("RL", build("toy/catch", method="rl"), {}, disk / "seed-1")
        result = sweep([job], Failing(), Quiet(), retries=0)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert result.failed == {
        disk / "seed-1": f"exit code 1 without any output (No space left on the disk of {str(disk)!r})"
    }
