"""Checkpoints that cannot be used, that another kind of device made, that are older than today's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.training import checkpoint
from tests.training.damage import edit, replace, without
from tests.training.stopping import interrupted

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 100,
    "min_size": 60,
    "K": 2,
    "episodes": 3,
    "every": 0,
    "log_every": 20,
    "checkpoint_every": 40,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing befell."""
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
    """Pictures that do not fill the replay."""
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
        (fold, "/state.json' cannot be read (Is a directory)"),
        (lambda path: edit(path, lambda entries, _: without(entries, "learner")), "' cannot be used (KeyError: 'le"),
        (lambda path: edit(path, lambda entries, _: without(entries, "actions")), "' cannot be used (KeyError: 'ac"),
    ],
    ids=["frames", "shapes", "checksum", "folder", "entry", "game"],
)


@DAMAGE
def test_what_a_bad_checkpoint_left_in_the_training_is_gone(
    damage: Callable[[Path], None], reason: str, run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoint.newest(run)
    damage(newest)
    pv.resume(run, quiet=True)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"playvirtual: checkpoint: '{newest}{reason}")
    assert said[0].endswith("; using the one before")
    assert said[1:] == [f"playvirtual: {run}: going on at step 40"]
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
        f"; no other in '{run}/checkpoints' can be used either; nothing was changed; to begin again at step 0, remove "
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


def by_a_gpu_before_that_was_noted(entries: list[list[Any]], tensors: dict[str, Tensor]) -> None:
    by_a_gpu(entries, tensors)
    without(entries, "device")


@pytest.mark.parametrize("made", [by_a_gpu, by_a_gpu_before_that_was_noted])
def test_a_run_moved_from_a_gpu_goes_on_and_says_so(
    made: Callable[..., None], run: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoint.newest(run)
    edit(newest, made)
    again = Path(shutil.copytree(run, tmp_path / "again"))
    for path in (run, again):
        pv.resume(path, quiet=True)
        assert capsys.readouterr().err.splitlines() == [
            f"playvirtual: {path}/checkpoints/step-000000071 was made on cuda and goes on on cpu: from here on its "
            "random draws are others",
            f"playvirtual: {path}: going on at step 71",
        ]
    assert same(run, again)
    assert not same(run, whole)
    metrics = [(path / "metrics.jsonl").read_text().splitlines() for path in (run, whole)]
    assert metrics[0][:3] == metrics[1][:3]
    assert metrics[0][3] != metrics[1][3]
    assert [json.loads(line)["step"] for line in metrics[0]] == [20, 40, 60, 80, 100]


def test_a_checkpoint_that_says_nothing_of_its_device_is_the_same_run(run: Path, whole: Path) -> None:
    edit(checkpoint.newest(run), lambda entries, _: without(entries, "device", "last"))
    pv.resume(run, quiet=True)
    assert same(run, whole)
