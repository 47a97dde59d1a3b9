"""An agent, a sampler and an env family of a package of its own, used through the command line alone.

The package stands outside of `src` and of the tests' own imports: a folder on PYTHONPATH with a module and the
`entry_points.txt` that an installer writes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cli.command import Forks

pytestmark = pytest.mark.slow

SMALL = ("--steps=120", "--learning-starts=60", "--eval-episodes=4", "--eval-every=60", "--log-every=60", "--quiet")
ENTRY_POINTS = """\
[playvirtual.extensions]
tiny = tiny_extension
broken = module_that_is_not_there
"""
GRID = """\
title = "A DQN beside SPR"
suite = "toy/catch"

[[row]]
label = "SPR"
method = "spr"
options = { K = 2, M = 0 }

[[row]]
label = "DQN"
method = "tiny-dqn"
options = { tiny_hidden = 16 }
"""

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def command(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """`playvirtual …` where the extension is installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("tiny_extension.py"), site)
    installed = site / "tiny_extension-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-extension\nVersion: 0.1\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))

    forks = Forks(PYTHONPATH=path)

    def run(*words: str, exit_code: int = 0) -> CompletedProcess[str]:
        done = forks.run(*words, cwd=folder)
        assert done.returncode == exit_code, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def trained(command: Command, folder: Path) -> Path:
    command("train", "toy/catch", "--method=tiny-dqn", "--tiny-hidden=16", "--run-dir=trained", *SMALL)
    return folder / "trained"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_methods_and_tasks_are_listed_and_a_broken_extension_is_a_warning(command: Command) -> None:
    methods = command("list", "methods")
    assert "tiny-dqn                a plain DQN on uniform replay" in methods.stdout.splitlines()
    assert "the extension 'broken' cannot be loaded (ModuleNotFoundError" in methods.stderr
    assert {"corridor/short", "corridor/long"} <= set(command("list", "tasks").stdout.splitlines())


def test_the_agent_is_trained_with_options_of_its_own(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    assert config["agent_kind"] == config["method"] == "tiny-dqn"
    assert config["agent"]["tiny_hidden"] == 16
    last = lines(trained / "metrics.jsonl")[-1]
    assert last["updates"] == 30
    assert last["loss"] > 0


def test_the_agent_is_evaluated_and_exported(command: Command, trained: Path, folder: Path) -> None:
    score = command("evaluate", "trained").stdout
    assert "over 4 episodes" in score
    command("export", "trained", "--out=exported")
    assert command("evaluate", "exported").stdout == score


def test_a_resumed_run_equals_one_that_was_never_stopped(command: Command, trained: Path, folder: Path) -> None:
    """The stopped run is a copy as it was after its first evaluation, in the middle."""
    stopped = folder / "stopped"
    shutil.copytree(trained, stopped)
    shutil.rmtree(sorted((stopped / "checkpoints").iterdir())[-1])
    logs = ("metrics.jsonl", "evaluations.jsonl")
    for name in logs:
        (stopped / name).write_text((trained / name).read_text().splitlines(keepends=True)[0])
    command("train", "--resume=stopped", "--tiny-hidden=16", "--quiet")
    for name in logs:
        assert (stopped / name).read_text() == (trained / name).read_text()
        assert lines(stopped / name)[-1]["step"] == 120


def test_the_agent_is_swept_and_reported_beside_another(command: Command, folder: Path) -> None:
    (folder / "grid.toml").write_text(GRID)
    command("sweep", "grid.toml", "--seeds=1", "--workers=2", "--out=swept", *SMALL[:-1])
    command("report", "swept", "--out=report")
    (scores,) = (folder / "report" / "tables").glob("toy-*-scores.csv")
    header = scores.read_text().splitlines()[0]
    assert header == "task,SPR,DQN"  # the grid's labels
    parameters = (folder / "report" / "tables" / "parameters.csv").read_text()
    assert f"{(100 + 1) * 16 + (16 + 1) * 3}" in parameters.replace(",", "")


def test_playvirtual_learns_from_virtual_actions_of_a_sampler_that_sees_the_state(
    command: Command, folder: Path
) -> None:
    guided = ("--virtual-actions=policy-guided", "--sigma=0.2", "--K=2", "--M=2", "--run-dir=guided")
    command("train", "toy/catch", "--method=playvirtual", *guided, *SMALL)
    assert lines(folder / "guided" / "metrics.jsonl")[-1]["loss_cyc"] > 0


def test_an_error_of_the_sampler_is_one_line(command: Command) -> None:
    """SAC's actor sees the convolutions' features and not the latent state, so there is no policy to follow."""
    guided = ("--virtual-actions=policy-guided", "--K=2", "--M=2", "--run-dir=not-guided")
    done = command("train", "toy/reach", *guided, *SMALL, exit_code=2)
    last = done.stderr.splitlines()[-1]
    assert (
        last == "playvirtual: error: virtual_actions: 'policy-guided' needs an agent whose policy acts on latent states"
    )
    assert "Traceback" not in done.stderr


def test_any_agent_is_trained_on_the_env_family(command: Command, folder: Path) -> None:
    command("train", "corridor/short", "--method=tiny-dqn", "--run-dir=corridor", *SMALL)
    assert json.loads((folder / "corridor" / "config.json").read_text())["environment"]["image_size"] == 10
    assert len(lines(folder / "corridor" / "evaluations.jsonl")[-1]["returns"]) == 4


def test_the_agent_learns(command: Command, folder: Path) -> None:
    """Before the first update it misses nearly every ball, after 2,000 it catches most of them."""
    flags = ("--steps=5000", "--learning-starts=1000", "--eval-every=1000", "--quiet")
    command("train", "toy/catch", "--method=tiny-dqn", "--run-dir=learns", *flags)
    scores = {line["step"]: mean(line["returns"]) for line in lines(folder / "learns" / "evaluations.jsonl")}
    assert scores[1000] < 0
    assert max(scores[4000], scores[5000]) > 0.4
