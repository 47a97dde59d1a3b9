"""Damaged checkpoints: the one before is used, and nothing in a checkpoint is ever executed."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint
from tests.training.interrupting import finish_and_compare, stopped

pytestmark = pytest.mark.slow  # every test resumes a run


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after 90 steps, to be copied and damaged."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    stopped(path, 89)
    return path


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
def test_the_checkpoint_before_a_damaged_one_is_used(
    name: str,
    damage: Callable[[Path], None],
    said: str,
    whole: Path,
    stopped_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(stopped_run, tmp_path / "run")
    newest = checkpoint.newest(tmp_path / "run")
    assert newest.name == "step-000000090"
    (file,) = newest.glob(name)
    damage(file)
    capsys.readouterr()
    finish_and_compare(tmp_path / "run", whole)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"playvirtual: checkpoint: '{file}' is damaged ({said}); using the one before"
    assert lines[1].endswith("resuming at step 80")
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000000120", "step-000000160"]


class RunsCode:
    """What an attacker would put into a checkpoint."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "weights.safetensors", "frames-*"])
def test_a_checkpoint_that_would_run_code_is_refused(name: str, whole: Path, stopped_run: Path, tmp_path: Path) -> None:
    """A pickle with a valid checksum is not damage but an attack; nothing of it is executed."""
    shutil.copytree(stopped_run, tmp_path / "run")
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


def test_a_run_whose_config_json_was_changed_does_not_resume_as_another_one(stopped_run: Path, tmp_path: Path) -> None:
    """A flipped bit of a number leaves a number: the run went on with another batch size, without a word."""
    path = tmp_path / "run"
    shutil.copytree(stopped_run, path)
    config = path / "config.json"
    before = config.read_text()
    config.write_text(before.replace('"discount": 0.99', '"discount": 0.91'))
    assert config.read_text() != before
    with pytest.raises(pv.RunError, match=r"than config\.json has now \(discount: 0\.99 → 0\.91\); no other in "):
        pv.resume(path, quiet=True)
    config.write_text(before.replace('"steps": 160', '"steps": 200'))
    assert pv.resume(path, quiet=True).config.steps == 200
