"""Checkpoints that cannot be used, and checkpoints that another kind of device wrote."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.runs import checkpoint
from tests.training.damage import edit, replace, without
from tests.training.interrupting import interrupted

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 100,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 3,
    "eval_every": 0,
    "log_every": 20,
    "checkpoint_every": 40,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("whole") / "run", quiet=True, **CATCH).path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped: its checkpoints are of steps 40 and 71."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    interrupted("toy/catch", CATCH, path, 70)
    return path


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


def same(path: Path, whole: Path) -> bool:
    """Whether two finished runs are one and the same."""
    files = ["metrics.jsonl", "evaluations.jsonl", "checkpoints/step-000000100/weights.safetensors"]
    return all((path / name).read_bytes() == (whole / name).read_bytes() for name in files)


def shorten_frames(path: Path) -> None:
    """Frames that do not fill the replay."""
    (file,) = path.glob("frames-*")
    replace(file, file.read_bytes()[:-10])


def widen_weights(path: Path) -> None:
    """As if another version had built its networks otherwise."""
    name = "state.agent.online.encoder.convs.0.weight"

    def change(_: object, tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.cat([tensors[name], tensors[name]])

    edit(path, change)


def flip(path: Path) -> None:
    data = bytearray((path / "state.safetensors").read_bytes())
    data[len(data) // 2] ^= 0x10
    (path / "state.safetensors").write_bytes(data)


def fold(path: Path) -> None:
    """A folder where a file should be."""
    (path / "state.json").unlink()
    (path / "state.json").mkdir()


DAMAGE = pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (shorten_frames, "' cannot be used (error: Error -5 while decompressing data: incomplete or truncated stream)"),
        (widen_weights, "' cannot be used (RuntimeError: Error(s) in loading state_dict for ModuleDict: size mismatch"),
        (flip, "/state.safetensors' is damaged (its checksum does not match)"),
        (fold, "/state.json' cannot be read: it is not a regular file"),
        (
            lambda path: edit(path, lambda entries, _: without(entries, "learner")),
            "' cannot be used (ValueError: state has no entry 'l",
        ),
        (
            lambda path: edit(path, lambda entries, _: without(entries, "env")),
            "' cannot be used (ValueError: state has no entry 'e",
        ),
    ],
    ids=["frames", "shapes", "checksum", "folder", "entry", "env"],
)


@pytest.mark.slow
@DAMAGE
def test_a_checkpoint_that_was_loaded_in_part_leaves_nothing_in_the_trainer(
    damage: Callable[[Path], None], reason: str, run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoint.newest(run)
    damage(newest)
    pv.resume(run, quiet=True)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"playvirtual: checkpoint: '{newest}{reason}")
    assert said[0].endswith("; using the one before")
    assert said[1:] == [f"playvirtual: {run}: resuming at step 40"]
    assert same(run, whole)


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "run.lock"}


@DAMAGE
def test_no_usable_checkpoint_ends_in_one_line_and_changes_nothing(
    damage: Callable[[Path], None], reason: str, run: Path, whole: Path
) -> None:
    for path in checkpoint.complete(run):
        damage(path)
    before = contents(run)
    with pytest.raises(pv.RunError) as caught:
        pv.resume(run, quiet=True)
    assert str(caught.value).startswith(f"checkpoint: '{run}/checkpoints/step-000000040{reason}")
    assert str(caught.value).endswith(
        f"; no other in '{run}/checkpoints' can be used either; nothing was changed; to start again at step 0, remove "
        f"that folder, then: playvirtual train --resume {run}"
    )
    assert "\n" not in str(caught.value)
    assert contents(run) == before
    if damage is flip:  # what the line says works
        shutil.rmtree(run / "checkpoints")
        pv.resume(run, quiet=True)
        assert same(run, whole)


def by_a_gpu(entries: list[list[Any]], tensors: dict[str, Tensor]) -> None:
    """What torch.Generator("cuda").get_state() gives: 8 bytes of seed, 8 of offset."""
    tensors["state.generator"] = torch.tensor([7, 4096]).view(torch.uint8)
    without(entries, "device")
    entries.append(["device", "cuda"])


def test_a_run_moved_from_a_gpu_resumes_and_says_so(
    run: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoint.newest(run)
    edit(newest, by_a_gpu)
    again = Path(shutil.copytree(run, tmp_path / "again"))
    for path in (run, again):
        pv.resume(path, quiet=True)
        assert capsys.readouterr().err.splitlines() == [
            f"playvirtual: {path}/checkpoints/step-000000071 was written on cuda and resumes on cpu: its random draws "
            "differ from here on",
            f"playvirtual: {path}: resuming at step 71",
        ]
    assert same(run, again)
    assert not same(run, whole)
    metrics = [(path / "metrics.jsonl").read_text().splitlines() for path in (run, whole)]
    assert metrics[0][:3] == metrics[1][:3]
    assert metrics[0][3] != metrics[1][3]
    assert [json.loads(line)["step"] for line in metrics[0]] == [20, 40, 60, 80, 100]
