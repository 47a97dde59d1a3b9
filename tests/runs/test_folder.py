"""A folder that is no run says which run was meant, whatever lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.errors import install_hint
from playvirtual.runs.folder import RunFolder
from tests.runs.untrained_export import write_export


def test_a_folder_above_a_run_names_the_first_run_in_it(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a-link").mkdir(parents=True)
    (tmp_path / "runs" / "a-link" / "around").symlink_to(tmp_path / "runs")
    for seed in (2, 1):
        write_export(tmp_path / "runs" / "toy-catch" / "spr" / f"seed-{seed}", "toy/catch")
    for above in ("runs", "runs/toy-catch", "runs/toy-catch/spr"):
        with pytest.raises(pv.InputError) as caught:
            RunFolder.open(tmp_path / above)
        assert f"did you mean '{tmp_path / 'runs/toy-catch/spr/seed-1'}'? allowed: " in str(caught.value)
    with pytest.raises(pv.InputError, match=r"it has no config\.json\); allowed: a folder that"):
        RunFolder.open(tmp_path / "runs" / "a-link")


@pytest.mark.parametrize("inside", ["config.json", "checkpoints", "checkpoints/step-000000100"])
def test_a_path_inside_a_run_names_the_run(inside: str, tmp_path: Path) -> None:
    write_export(tmp_path / "run", "toy/catch")
    (tmp_path / "run" / "checkpoints" / "step-000000100").mkdir(parents=True)
    with pytest.raises(pv.InputError) as caught:
        RunFolder.open(tmp_path / "run" / inside)
    assert f"did you mean '{tmp_path / 'run'}'? allowed: " in str(caught.value)


def test_what_an_extra_installs_is_named_for_those_without_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.8", "dm-control>=1; extra == 'dmc'", 'mujoco<4; extra == "dmc"', "ray; extra == 'ray'"]
    monkeypatch.setattr("playvirtual.errors.requires", lambda name: lines)
    hint = "in a clone: pip install -e '.[dmc]'; elsewhere: pip install 'dm-control>=1' 'mujoco<4'"
    assert install_hint("dmc") == hint
    assert install_hint("none") == "in a clone: pip install -e '.[none]'"
