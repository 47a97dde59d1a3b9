"""What agents cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import playvirtual as pv
from playvirtual.agents.agent import CountsReleasedParameters, make_agent
from playvirtual.config.build import build
from playvirtual.errors import InputError
from playvirtual.runs import checkpoint
from playvirtual.runs.folder import RunFolder
from playvirtual.study.probes.complexity import _update_seconds, parameters
from playvirtual.study.probes.probe import probe
from playvirtual.study.report.report import report
from tests.study.untrained import write_run
from tests.training.damage import replace


@pytest.mark.parametrize(
    ("task", "method", "wanted"),
    [
        ("atari/pong", "spr", 3_829_319),  # the paper: 3.83 M
        ("atari/pong", "playvirtual", 3_908_523),  # 3.91 M
        pytest.param("dmc/cartpole-swingup", "spr", 25_811_673, marks=pytest.mark.slow),  # 25.81 M
        pytest.param("dmc/cartpole-swingup", "playvirtual", 25_864_971, marks=pytest.mark.slow),  # 25.86 M
    ],
)
def test_the_papers_own_counts(task: str, method: str, wanted: int) -> None:
    shapes = {
        "atari/pong": ((4, 84, 84), spaces.Discrete(6)),
        "dmc/cartpole-swingup": ((9, 100, 100), spaces.Box(-1.0, 1.0, (1,), np.float32)),
    }
    config = build(task, method=method, preset="reference")
    agent = make_agent(config, *shapes[task], torch.device("cpu"), seed=0)
    assert isinstance(agent, CountsReleasedParameters)
    assert agent.released_parameter_count() == wanted


@pytest.mark.slow
def test_counts_are_compared_in_the_papers_way(tmp_path: Path) -> None:
    for preset in ("paper", "reference"):
        path = tmp_path / "runs" / preset
        write_run(path, "dmc/cartpole-swingup", "playvirtual", 1, 800.0, preset=preset)
        newest = checkpoint.checkpoint_path(path, 100_000)
        newest.mkdir(parents=True)
        (newest / "manifest.json").write_text("{}")
        record = {"step": 100_000, "observation_shape": [9, 100, 100], "actions": {"low": [-1.0], "high": [1.0]}}
        replace(newest / "agent.json", json.dumps(record).encode())
    report([tmp_path / "runs"], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "parameters.csv").read_text().splitlines()
    assert rows[0] == "task,setting,trainable parameters,counted as in the paper,paper"
    assert rows[2].endswith(',playvirtual (reference),"11,394,849","25,864,971",25.86 M')
    said = probe(tmp_path / "runs" / "reference", "complexity")
    assert "counted as in the paper: 25,864,971 (what the released code declares" in said
    assert "  paper: 25.86 million\n" in said
    assert "paper: 25.86 million, there projection_hidden is 100" in probe(tmp_path / "runs" / "paper", "complexity")


def test_an_export_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    exported = pv.export(runs["toy/catch"], tmp_path / "small")
    with pytest.raises(InputError, match="small' is an export, which has no record of training; allowed: the run"):
        probe(exported, "complexity")


def test_parameters_are_those_of_the_newest_complete_checkpoint(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["toy/catch"], run)
    wanted = parameters(run)
    newest = checkpoint.newest(run)
    for name in ("step-000000200.partial", "step-000000300.damaged"):  # later, and of another number of actions
        other = newest.with_name(name)
        shutil.copytree(newest, other)
        record = json.loads((other / "agent.json").read_text())
        (other / "agent.json").write_text(json.dumps({**record, "actions": {"n": 18}}))
    assert parameters(run) == wanted
    (newest / "agent.json").write_text("{}")
    with pytest.raises(InputError, match=r"agent\.json' is damaged"):
        parameters(run)
    shutil.rmtree(newest)
    with pytest.raises(InputError, match="has no checkpoint yet"):
        parameters(run)


def test_the_time_of_updates_is_that_of_the_last_line_that_both_logs_have(tmp_path: Path) -> None:
    """150 updates in 3.6 s are 24 s for 1000; the later line has no updates yet, the earlier one is not the last."""
    write_run(tmp_path / "run", "toy/catch", "spr", 1, 0.5)
    metrics = [{"step": 50, "updates": 20}, {"step": 100, "updates": 150}]
    timing = [{"step": 50, "update": 3.0}, {"step": 100, "update": 3.6}, {"step": 120, "update": 9.0}]
    for name, lines in (("metrics", metrics), ("timing", timing)):
        (tmp_path / "run" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _update_seconds(RunFolder(tmp_path / "run")) == pytest.approx(24.0)
