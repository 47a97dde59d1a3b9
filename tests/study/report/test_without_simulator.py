"""Runs are reported, probed and planned where the simulator that made them is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from playvirtual import envs
from playvirtual.cli.main import main
from playvirtual.config.build import build
from playvirtual.errors import InputError
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import policy_files
from playvirtual.study.probes.probe import probe
from playvirtual.study.report.records import collect
from playvirtual.study.report.report import report
from playvirtual.study.sweep.grids import chosen_tasks, load
from tests.study.untrained import write_run

MISSING = "dmc: DMControl is not installed"


@pytest.fixture
def cheetahs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of DMControl on a machine that no longer has it."""
    runs = tmp_path / "runs"
    write_run(runs / "a", "dmc/cheetah-run", "spr", 1, 400.0)
    write_run(runs / "b", "dmc/cheetah-run", "playvirtual", 1, 450.0, K=3)
    monkeypatch.setitem(sys.modules, "dm_control", None)  # neither found nor imported
    with pytest.raises(InputError, match=MISSING):
        envs.check("dmc/cheetah-run")
    return runs


def test_runs_are_reported(cheetahs: Path, tmp_path: Path) -> None:
    records, problems = collect([cheetahs])
    assert [record.changed for record in records] == [{}, {"K": 3}]
    assert not problems
    assert report([cheetahs], tmp_path / "out").summary == "2 finished runs of 1 task"
    assert (tmp_path / "out" / "tables" / "ablation-ablation-k.csv").exists()


def test_the_complexity_of_a_run_is_probed(cheetahs: Path) -> None:
    actions = spaces.Box(-1.0, 1.0, (6,), np.float32)
    files = policy_files(100_000, {}, (9, 100, 100), actions)
    checkpoint.save(cheetahs / "b", 100_000, files.items())
    assert "(this run has K = 3)" in probe(cheetahs / "b", "complexity")


@pytest.mark.slow
def test_what_there_is_to_run_is_shown(cheetahs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "experiments"]) == 0
    assert "5 settings on dmc100k" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sweep", "dmc100k", "--help"])
    assert "those of dmc/finger-spin" in " ".join(capsys.readouterr().out.split())


def test_nothing_is_begun(cheetahs: Path) -> None:
    with pytest.raises(InputError, match=MISSING):
        build("dmc/cheetah-run")
    with pytest.raises(InputError, match=MISSING):
        chosen_tasks(load("dmc100k"), None)
