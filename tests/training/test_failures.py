"""Runs that fail: divergence, an environment that raises, memory that runs out."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.runs import checkpoint
from playvirtual.training.checkpointing import NonFiniteWeights, RunPosition, checkpoint_files
from playvirtual.training.trainer import Trainer
from tests.training.interrupting import CATCH, FLAGS
from tests.training.scripted_env import DISCRETE, scripted_tasks

REACH = {**CATCH, "hidden": 16, "M": 2, "batch_size": 8, "auxiliary_batch_size": 4}


@pytest.mark.parametrize(("task", "options"), [("toy/catch", CATCH), ("toy/reach", REACH)])
def test_divergence_stops_the_run_and_names_the_loss(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A learning rate of 10³⁰ takes any network out of the numbers within a few updates."""
    path = tmp_path / "run"
    with pytest.raises(pv.RunError, match=r"^loss.*: not finite at step \d+ \(update \d+\); its batch is in") as caught:
        pv.train(task, run_dir=path, quiet=True, **{**options, "learning_rate": 1e30})
    assert f"last good checkpoint: {path}/checkpoints/step-000000040; to resume: playvirtual" in str(caught.value)
    record = json.loads((path / "nonfinite.json").read_text())
    assert record["losses"]
    assert 60 <= record["step"] <= 90
    rate = pv.build(task).agent.updates_per_step
    assert int((record["step"] - 59) * rate) == record["update"] or record["update"] == 1
    kinds = {"toy/catch": {"sequences"}, "toy/reach": {"transitions", "sequences"}}[task]
    assert record["positions"].keys() == kinds
    assert all(0 <= p < 90 for positions in record["positions"].values() for p in positions)
    assert [p.name for p in checkpoint.complete(path)] == ["step-000000040"]
    checkpoint.verify(checkpoint.newest(path))


@pytest.mark.parametrize("part", ["encoder", "target_head", "optimizer"])
def test_a_checkpoint_never_holds_weights_that_are_not_finite(part: str) -> None:
    """Nor the state of an optimizer: a run resumed from it could only fail again."""
    with scripted_tasks():
        options = {**DISCRETE, "steps": 30, "learning_starts": 20, "n_step": 3, "K": 2, "updates_per_step": 1}
        with closing(Trainer(pv.build("scripted/discrete", **options))) as trainer:
            trainer.train(22)
            position = RunPosition({}, {})
            assert checkpoint_files(trainer, position)
            agent: Any = trainer.agent
            weight = next(agent.parts["target_head" if part == "target_head" else "encoder"].parameters())
            damaged = agent.optimizer.state[weight]["exp_avg"] if part == "optimizer" else weight
            damaged.detach()[0].fill_(np.inf)
            with pytest.raises(NonFiniteWeights):
                checkpoint_files(trainer, position)


class Fragile(gymnasium.Env[Any, Any]):
    """Breaks down at the step that it was made to break down at."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    breaks_at, steps = 0, 0
    error: Exception = ValueError("the rope\nis torn")

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((10, 10, 1), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Fragile.steps += 1
        if Fragile.steps == Fragile.breaks_at:
            raise Fragile.error
        return np.zeros((10, 10, 1), np.uint8), 0.0, False, False, {}


FRAGILE = [*FLAGS, "--image-size", "10", "--channels", "8", "--kernel-sizes", "3", "--strides", "1", "--hidden", "16"]
FRAGILE += ["--batch-size", "4", "--M", "1", "--max-episode-frames", "40", "--threads", "1", "--quiet"]


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    if "Fragile-v0" not in gymnasium.registry:
        gymnasium.register("Fragile-v0", Fragile)
    pv.build("gym/Fragile-v0")  # what it shows and pays is found out once per process, by playing it
    monkeypatch.setattr(Fragile, "steps", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("fragile")
def test_an_environment_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training and where its episode is replayed: what and where, the last checkpoint, the command to resume."""
    path = tmp_path / "run"
    monkeypatch.setattr(Fragile, "breaks_at", 90)
    assert main(["train", "gym/Fragile-v0", *FRAGILE, "--run-dir", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    said = re.fullmatch(
        r"playvirtual: error: environment: 'gym/Fragile-v0' failed at frame 10 of an episode, with the action \d: "
        rf"ValueError: the rope is torn \({re.escape(__file__)}:\d+\); in step 90; its traceback is in "
        rf"{path}/error.txt; last good checkpoint: {path}/checkpoints/step-000000080; "
        rf"to resume: playvirtual train --resume {path}",
        line,
    )
    assert said, line
    assert "in step\n    raise Fragile.error" in (path / "error.txt").read_text()
    monkeypatch.setattr(Fragile, "breaks_at", Fragile.steps + 1)
    with pytest.raises(pv.RunError, match=r"ValueError: the rope is torn .*000080; to resume") as caught:
        pv.resume(path, quiet=True)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is Fragile.error
    assert len(pv.resume(path, quiet=True).returns) == CATCH["eval_episodes"]


@pytest.mark.slow
@pytest.mark.usefixtures("fragile")
@pytest.mark.parametrize(("at", "safe"), [(3, "there is no checkpoint yet"), (90, "last good checkpoint: ")])
def test_memory_that_runs_out_in_mid_run(
    at: int, safe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Fragile, "breaks_at", at)
    monkeypatch.setattr(Fragile, "error", MemoryError("out of memory"))
    assert main(["train", "gym/Fragile-v0", *FRAGILE, "--run-dir", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("playvirtual: error: memory: out of memory; what decides it: ")
    assert f"; {safe}" in said
    assert said.count("\n") == 1


OWN: dict[str, Any] = {
    **CATCH,
    "image_size": 10,
    "channels": "8",
    "kernel_sizes": "3",
    "strides": "1",
    "hidden": 16,
    "batch_size": 4,
    "M": 1,
    "max_episode_frames": 40,
    "quiet": True,
}


class Counted(Fragile):
    """Counts how many of it are open, and is made no more once there are none left."""

    left, opened = 1_000_000, 0

    def __init__(self) -> None:
        if Counted.left == 0:
            raise ValueError("no licence is left")
        Counted.left, Counted.opened = Counted.left - 1, Counted.opened + 1

    def close(self) -> None:
        Counted.opened -= 1


@pytest.mark.slow
def test_a_trainer_that_cannot_be_made_anew_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that proves to be damaged while it is loaded takes a new trainer, and so a new environment."""
    run = pv.train(env=Counted, run_dir=tmp_path / "run", **OWN).path
    file = checkpoint.newest(run) / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    monkeypatch.setattr(Counted, "left", 1)
    with pytest.raises(pv.InputError, match="ValueError: no licence is left"):
        pv.resume(run, env=Counted, steps=OWN["steps"] + 20, quiet=True)
    assert Counted.opened == 0


class Stuck(Fragile):
    """Raises when it is closed, as a window does that is gone already."""

    def close(self) -> None:
        raise RuntimeError("the window is gone")


@pytest.mark.slow
def test_an_environment_that_cannot_be_closed_loses_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pv.train(env=Stuck, run_dir=tmp_path / "run", **OWN)
    assert len(run.returns) == OWN["eval_episodes"]
    said = [line for line in capsys.readouterr().err.splitlines() if "cannot be closed" in line]
    assert len(said) == 1
    assert "Stuck' cannot be closed: RuntimeError: the window is gone (" in said[0]


def test_a_run_that_cannot_begin_leaves_no_environment_open(tmp_path: Path) -> None:
    with pytest.raises(pv.InputError, match="memory: about"):
        pv.train(env=Counted, run_dir=tmp_path / "run", **{**OWN, "batch_size": 2**30})
    assert Counted.opened == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow(15)
@pytest.mark.usefixtures("fragile")
def test_a_run_whose_states_all_look_alike_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every image of the environment is the same."""
    options = {**OWN, "steps": 1_400, "log_every": 100, "checkpoint_every": 700, "updates_per_step": 1.0}
    run = pv.train(env=Fragile, run_dir=tmp_path / "run", **options)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["target_spread"] < 1e-5
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "look alike" in line]
    step = next(line["step"] for line in lines if line["updates"] >= 1_000)
    assert said.startswith(f"playvirtual: step {step}: all states look alike to the agent (target_spread ")
