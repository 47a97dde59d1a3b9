"""The Python entry points on a finished run: its own score again, damaged checkpoints, bad input."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.api import evaluation
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import read_step
from playvirtual.study.probes.dynamics_error import dynamics_mse
from playvirtual.training.trainer import Trainer

QUICK: dict[str, Any] = {"device": "cpu", "steps": 90, "learning_starts": 40, "hidden": 16, "K": 2, "eval_episodes": 40}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pv.Run:
    """Two checkpoints, at 45 and 90; half of its evaluation's actions are random."""
    where = tmp_path_factory.mktemp("api") / "run"
    return pv.train("toy/catch", run_dir=where, checkpoint_every=45, eval_epsilon=0.5, quiet=True, **QUICK)


def test_evaluating_without_options_gives_the_runs_own_returns(run: pv.Run) -> None:
    assert len(set(run.returns)) == 2
    assert pv.evaluate(run.path, device="cpu") == run.returns
    others = [pv.evaluate(run.path, seed=seed, device="cpu") for seed in range(10, 16)]
    assert any(returns != run.returns for returns in others)


def test_a_run_stands_for_its_folder(run: pv.Run, tmp_path: Path) -> None:
    observation = np.random.default_rng(0).integers(256, size=(4, 1, 10, 10)).astype(np.uint8)
    actions = pv.load(run.path, "cpu").unwrapped.act(observation)
    assert pv.load(run, "cpu").unwrapped.act(observation).equal(actions)
    assert pv.load(pv.export(run, tmp_path / "agent"), "cpu").unwrapped.act(observation).equal(actions)
    assert pv.evaluate(run, device="cpu") == pv.evaluate(run.path, device="cpu")
    assert pv.resume(run).returns == run.returns


def test_an_evaluation_is_of_the_checkpoint_that_it_loaded_whatever_is_written_while_it_plays(
    run: pv.Run, tmp_path: Path
) -> None:
    """`playvirtual evaluate --json` on a run that was training wrote the step of the newest checkpoint at its end."""
    path = shutil.copytree(run.path, tmp_path / "run")
    newest = checkpoint.newest(path)
    later = newest.rename(tmp_path / "later")

    def trained_on(ended: int, steps: int) -> None:
        if later.exists():
            later.rename(newest)

    found = evaluation(path, device="cpu", progress=trained_on)
    assert (found.step, read_step(checkpoint.newest(path))) == (45, 90)
    assert evaluation(path, device="cpu") == (90, run.returns)


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()  # it may be linked into other checkpoints
    file.write_bytes(data)


def test_the_checkpoint_before_a_damaged_one_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = pv.train("toy/catch", run_dir=tmp_path / "run", checkpoint_every=45, quiet=True, **QUICK)
    older, newest = checkpoint.complete(run.path)
    damage(newest / "weights.safetensors")
    capsys.readouterr()
    out = pv.export(run, tmp_path / "agent")
    assert read_step(out) == 45
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("weights.safetensors' is damaged (its checksum does not match); using the one before")
    damage(older / "weights.safetensors")
    with pytest.raises(pv.InputError, match=r"step-000000045/weights.safetensors' is damaged"):
        pv.load(run, "cpu")


@pytest.mark.parametrize("content", ["{", "[]", '{"task": "toy/catch"}'])
def test_a_run_with_an_unreadable_configuration_is_not_exported(content: str, run: pv.Run, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(run.path, tmp_path / "run"))
    (broken / "config.json").write_text(content)
    with pytest.raises(pv.InputError, match=r"config\.json"):
        pv.export(broken, tmp_path / "agent")
    assert not (tmp_path / "agent").exists()


def test_a_device_may_be_pytorchs_own_object(run: pv.Run, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert pv.load(run, cpu).device == pv.load(run, device=cpu).device == cpu
    assert pv.evaluate(run, device=cpu) == run.returns
    assert pv.resume(run, device=cpu, quiet=True).returns == run.returns
    options: dict[str, Any] = {**QUICK, "steps": 50, "device": cpu, "quiet": True}
    assert pv.train("toy/catch", run_dir=tmp_path / "run", **options).config.device == "cpu"
    assert dynamics_mse(run.path, transitions=2, device=cpu) == dynamics_mse(run.path, transitions=2, device="cpu")
    with pytest.raises(pv.InputError, match="device: 'meta' is not allowed; allowed: auto, cpu, cuda, cuda:N"):
        pv.load(run, torch.device("meta"))


def test_an_export_cannot_be_resumed(run: pv.Run, tmp_path: Path) -> None:
    out = pv.export(run, tmp_path / "agent")
    before = sorted(p.name for p in out.iterdir())
    with pytest.raises(pv.InputError, match=r"^run: '.*agent' is an export, which cannot be resumed; allowed: the run"):
        pv.resume(out)
    assert sorted(p.name for p in out.iterdir()) == before


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
@pytest.mark.parametrize(
    "observation",
    [np.zeros((10, 10), np.uint8), np.zeros((3, 84, 84), np.uint8), np.zeros((2, 1, 10, 10), np.float32)],
)
def test_what_an_agent_cannot_look_at_is_named(task: str, observation: Any) -> None:
    trainer = Trainer(pv.build(task, device="cpu"))
    with pytest.raises(pv.InputError, match=r"^observation: (uint8|float32) of shape .* allowed: uint8 of shape \("):
        trainer.agent.act(observation)
    with pytest.raises(pv.InputError, match=r"^observation: NoneType is not allowed; allowed: uint8 of shape \("):
        trainer.agent.act(None)
    trainer.close()


def test_what_is_no_name_and_no_folder_is_named() -> None:
    with pytest.raises(pv.InputError, match=r"^method: None is not known; allowed: bbf, bbf-virtual, curl, "):
        pv.train("toy/catch", method=None)
    with pytest.raises(pv.InputError, match=r"^run: None is not allowed; allowed: what `pv.train` returned, or a run"):
        pv.load(None)


@pytest.mark.parametrize("task", [None, 3])
def test_a_task_is_a_name(task: Any) -> None:
    with pytest.raises(pv.InputError, match=rf"^task: {task} is not allowed; allowed: a name such as 'atari/pong'$"):
        pv.build(task)
