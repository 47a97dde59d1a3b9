"""Full disks, read-only and removed folders, second processes: one line, and nothing that was saved is lost."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint
from playvirtual.runs.atomic_io import lock_run_folder
from tests.cli.command import playvirtual
from tests.training.interrupting import CATCH, FLAGS, finish_and_compare, stopped, train_until


def test_a_removed_run_folder_is_not_made_again(tmp_path: Path) -> None:
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
        f"to resume: playvirtual train --resume {path}"
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


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_line(whole: Path, small_disk: tuple[Path, Callable[[str], None]]) -> None:
    disk, remount = small_disk
    one = sum(f.stat().st_size for f in checkpoint.newest(whole).iterdir())
    remount(f"size={int(2.6 * one / 1024)}k")
    path = disk / "run"
    result = playvirtual("train", "toy/catch", *FLAGS, "--run-dir", str(path), "--quiet", cwd=disk)
    assert result.returncode == 1
    assert result.stderr.startswith(f"playvirtual: error: cannot write '{path}")
    assert "No space left on device; last good checkpoint: " in result.stderr
    assert result.stderr.count("\n") == 1
    kept = checkpoint.complete(path)
    assert [p.name for p in kept] == ["step-000000080", "step-000000120"]
    assert f"last good checkpoint: {kept[-1]}; to resume: playvirtual train --resume {path}\n" in result.stderr
    for each in kept:
        checkpoint.verify(each)
    remount("ro")
    refused = playvirtual("train", "--resume", str(path), "--quiet", cwd=disk)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"run_dir: '{path}' cannot be written: Read-only file system" in refused.stderr
    remount(f"rw,size={int(5 * one / 1024)}k")
    finish_and_compare(path, whole)


def test_a_run_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pv.InputError, match=r"run_dir: .* cannot be made: Not a directory"):
        pv.train("toy/catch", run_dir=tmp_path / "file" / "run", quiet=True, **CATCH)


@pytest.mark.slow
def test_a_second_process_is_refused(whole: Path, tmp_path: Path) -> None:
    stopped(tmp_path / "run", 50)
    with lock_run_folder(tmp_path / "run"):
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        second = playvirtual("train", "--resume", str(tmp_path / "run"), "--quiet", cwd=tmp_path)
        assert second.returncode == 2
        assert f"run_dir: '{tmp_path / 'run'}' is in use by process {os.getpid()} on " in second.stderr
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    finish_and_compare(tmp_path / "run", whole)


def test_a_run_whose_lock_was_removed_writes_nothing_more(whole: Path, tmp_path: Path) -> None:
    """A second process may have locked the folder since: the lines of both would be one log of wrong numbers."""
    path, before = tmp_path / "run", list[bytes]()

    def unlock() -> None:
        (path / "run.lock").unlink()
        before.append((path / "metrics.jsonl").read_bytes())

    with pytest.raises(pv.RunError) as caught:
        train_until(path, 70, unlock)
    assert str(caught.value) == (
        f"run folder: '{path}/run.lock' was removed: another process may work there, and this one writes nothing more; "
        f"last good checkpoint: {path}/checkpoints/step-000000040; to resume: playvirtual train --resume {path}"
    )
    assert (path / "metrics.jsonl").read_bytes() == before[0]
    finish_and_compare(path, whole)


def test_a_run_whose_folder_was_moved_writes_nothing_into_the_run_that_took_its_place(tmp_path: Path) -> None:
    path, aside, other = tmp_path / "run", tmp_path / "aside", tmp_path / "other"
    stopped(other, 50, seed=2)
    (other / "run.lock").write_text("process 1 on another host\n")

    def replace() -> None:
        path.rename(aside)
        other.rename(path)

    with pytest.raises(pv.RunError, match=r"run\.lock' is not that of this process any more: another process may"):
        train_until(path, 70, replace)
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 1
    assert [folder.name for folder in checkpoint.complete(path)] == ["step-000000040", "step-000000051"]
