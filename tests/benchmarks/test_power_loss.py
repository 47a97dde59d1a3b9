"""Power failures at every moment of a run, a short version of benchmarks/power_loss.py."""

from __future__ import annotations

import os
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from playvirtual.runs import atomic_io, checkpoint, jsonl

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "power_loss.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
if not os.path.isdir("/proc/self/fd"):
    pytest.skip("the names of open files are read from /proc", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))  # as `python benchmarks/power_loss.py` has it
try:
    power_loss = import_module("power_loss")
finally:
    sys.path.remove(str(SCRIPT.parent))


def problems(tmp_path: Path, *, resume: int, **options: int) -> list[str]:
    """What is broken after a power failure at any moment of a run; `resume` moments are resumed as well."""
    whole = tmp_path / "whole"
    whole.mkdir()
    found = list(power_loss.moments(power_loss.record(whole, **options)))
    assert len(found) > options["steps"]
    resumed, broken = set(random.Random(0).sample(range(len(found)), resume)), []
    for number, moment in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        moment.write(folder)
        run, undisturbed = folder / power_loss.RUN, whole / power_loss.RUN
        broken += power_loss.broken_promises(run, moment.promised, undisturbed)
        if number in resumed:
            broken += power_loss.resumes_equal(run, undisturbed, **options)
    return broken


@pytest.mark.slow(seconds=15)
def test_a_power_failure_at_any_moment_costs_no_checkpoint(tmp_path: Path) -> None:
    assert problems(tmp_path, resume=5, steps=80, eval_every=40) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "lost"),
    [
        (atomic_io, "the run folder is gone"),  # of the folders above the run's
        (checkpoint, "the checkpoint of step 20 is gone"),  # of checkpoints/ and its entries
        (jsonl, "bytes of metrics.jsonl; there are 0"),
    ],
)
def test_a_missing_fsync_is_noticed(module: Any, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fsync", lambda path: None)
    assert any(lost in problem for problem in problems(tmp_path, resume=0, steps=41))


def test_the_model_of_a_disk_drops_what_was_not_synced() -> None:
    disk = power_loss.Disk()
    for operation in (
        ("make folder", "a"),
        ("make file", "a/f"),
        ("write", "a/f", b"old"),
        ("sync", "a/f"),
        ("write", "a/f", b"newer"),
        ("sync", ""),
    ):
        disk.apply(operation)
    assert disk.after_power_loss("dropped") == {"a": None}  # the entry of `f` was not synced
    assert disk.after_power_loss("entries") == {"a": None, "a/f": b"old"}
    assert disk.after_power_loss("kept") == {"a": None, "a/f": b"newer"}
    disk.apply(("sync", "a"))
    disk.apply(("rename", "a/f", "a/g"))
    assert disk.after_power_loss("dropped") == {"a": None, "a/f": b"old"}
    assert disk.after_power_loss("entries") == {"a": None, "a/g": b"old"}
