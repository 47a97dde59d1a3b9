"""A run with more steps, a run that starts with another one's weights, and a run that ends early."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.runs import checkpoint, stopped
from playvirtual.runs.agents import WEIGHTS, read_agent_state
from playvirtual.runs.folder import RunFolder
from playvirtual.study.report.records import read
from playvirtual.study.sweep import sweep
from playvirtual.study.sweep.grids import Job
from playvirtual.training.trainer import Trainer
from tests.training.equal_runs import same
from tests.training.small import CONTINUOUS

CATCH: dict[str, Any] = {
    "device": "cpu",
    "quiet": True,
    "learning_starts": 30,
    "hidden": 16,
    "K": 2,
    "batch_size": 8,
    "updates_per_step": 0.25,
    "eval_episodes": 2,
    "eval_every": 40,
    "log_every": 20,
    "checkpoint_every": 0,
}
REACH = {
    **CONTINUOUS,
    "quiet": True,
    "updates_per_step": 0.25,
    "eval_every": 40,
    "log_every": 20,
    "learning_starts": 30,
}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 60 steps, which tests only read."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("short") / "run", **{**CATCH, "steps": 60}).path


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("task", "options"), [("toy/catch", CATCH), ("toy/reach", REACH)])
def test_an_extended_run_is_the_longer_run(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Where the first end is one of the longer run's evaluations and lines of metrics, every byte is the same."""
    pv.train(task, run_dir=tmp_path / "whole", **{**options, "steps": 80})
    pv.train(task, run_dir=tmp_path / "parts", **{**options, "steps": 40})
    before = (tmp_path / "parts" / "evaluations.jsonl").read_bytes()
    run = pv.resume(tmp_path / "parts", steps=80, quiet=True)
    same(tmp_path / "whole", tmp_path / "parts")
    assert (tmp_path / "parts" / "evaluations.jsonl").read_bytes().startswith(before)
    assert run.config.steps == 80
    record = json.loads((run.path / "config.json").read_text())
    assert [{k: e[k] for k in ("at", "from", "to")} for e in record["extended"]] == [{"at": 40, "from": 40, "to": 80}]
    assert RunFolder.open(run.path).config() == run.config
    report = read(run.path)
    assert (report.steps, report.finished) == (80, True)


def test_an_extension_at_an_odd_step_adds_its_lines_and_keeps_the_weights(short: Path, tmp_path: Path) -> None:
    """Step 60 has a line of metrics and an evaluation that a run of 100 steps does not have; the rest is the same."""
    shutil.copytree(short, tmp_path / "parts")
    pv.train("toy/catch", run_dir=tmp_path / "whole", **{**CATCH, "steps": 100})
    extended = ["train", "toy/catch", "--resume", "--run-dir", str(tmp_path / "parts"), "--quiet", "--steps", "100"]
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in CATCH.items() if k != "quiet"]
    assert main([*extended, *flags]) == 0
    assert [e["step"] for e in lines(tmp_path / "parts", "evaluations")] == [40, 60, 80, 100]
    assert [e for e in lines(tmp_path / "parts", "evaluations") if e["step"] != 60] == lines(
        tmp_path / "whole", "evaluations"
    )
    agents = [read_agent_state(checkpoint.newest(tmp_path / name)) for name in ("parts", "whole")]
    assert torch.equal(*(agent["online"]["encoder.convs.0.weight"] for agent in agents))


@pytest.mark.parametrize(("steps", "said"), [(59, "steps: 60 → 59"), (0, "steps: 0 is not allowed")])
def test_a_run_does_not_get_shorter(steps: int, said: str, short: Path) -> None:
    with pytest.raises(pv.InputError, match=said):
        pv.resume(short, steps=steps, quiet=True)
    assert RunFolder.open(short).config().steps == 60


def test_a_warm_start_takes_the_weights_alone(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {k: v for k, v in CATCH.items() if k != "quiet"}
    export = pv.export(short, tmp_path / "agent")
    theirs = read_agent_state(checkpoint.newest(short))["online"]
    for source in (short, export):
        config = pv.build("toy/catch", **options, steps=60, seed=9, init_from=str(source))
        with (
            closing(Trainer(config)) as warm,
            closing(Trainer(pv.build("toy/catch", **options, steps=60, seed=9))) as cold,
        ):
            state = warm.agent.state_dict()
            assert torch.equal(state["online"]["encoder.convs.0.weight"], theirs["encoder.convs.0.weight"])
            target = warm.agent.parts["target_encoder"].state_dict()["convs.0.weight"]
            assert torch.equal(target, theirs["encoder.convs.0.weight"])
            assert not torch.equal(target, cold.agent.parts["target_encoder"].state_dict()["convs.0.weight"])
            assert torch.equal(warm.generator.get_state(), cold.generator.get_state())  # nothing was drawn
            assert not warm.agent.state_dict()["optimizer"]["state"]
    assert "has no predictor, forward_dynamics, backward_dynamics, which start with new" in capsys.readouterr().err


def test_networks_start_as_their_targets_where_an_export_has_these_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SR-SPR acts by its target network, so that this is what it exports."""
    options = {**{k: v for k, v in CATCH.items() if k != "quiet"}, "method": "sr-spr"}
    export = pv.export(pv.train("toy/catch", run_dir=tmp_path / "run", quiet=True, **options), tmp_path / "agent")
    theirs = checkpoint.read_tensors(export, WEIGHTS)
    with closing(Trainer(pv.build("toy/catch", **options | {"seed": 9}, init_from=str(export)))) as warm:
        for part in ("encoder", "head"):
            for name, value in warm.agent.parts[part].state_dict().items():
                assert torch.equal(value, theirs[f"target_{part}.{name}"])
                assert torch.equal(value, warm.agent.parts[f"target_{part}"].state_dict()[name])
    assert "has no predictor, forward_dynamics, which start with new weights" in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_targets_start_as_copies_where_an_export_has_a_part_of_a_network(preset: str, tmp_path: Path) -> None:
    """The export of a continuous agent has its convolutions, which encoder and critic share, and its actor."""
    options = {k: v for k, v in REACH.items() if k != "quiet"} | {"preset": preset}
    run = pv.train("toy/reach", run_dir=tmp_path / "run", quiet=True, **options)
    export = pv.export(run, tmp_path / "agent")

    def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
        return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

    with closing(Trainer(pv.build("toy/reach", **options | {"seed": 9}, init_from=str(export)))) as warm:
        parts = {name: module.state_dict() for name, module in warm.agent.parts.items()}
    theirs = pv.load(export, "cpu").unwrapped.parts["convolutions"].state_dict()
    assert equal(parts["convolutions"], theirs)
    copies = {"target_critic": "critic", "target_encoder": "encoder", "momentum_encoder": "encoder"}
    assert all(equal(parts[target], parts[online]) for target, online in copies.items())
    # Nothing of the projection was loaded: its target starts as the preset has it.
    assert equal(parts["momentum_projector"], parts["projector"]) == (preset == "paper")


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("toy/catch", {"hidden": 24}, r"head\.\S+ is of shape \(16, .*\) there and of shape \(24, .*\) here"),
        ("toy/reach", {}, "has the agent 'rainbow'; allowed: a run of the agent 'sac'"),
        ("toy/catch", {"init_from": "nowhere"}, "run: 'nowhere' is not there"),
    ],
)
def test_weights_that_do_not_fit_are_one_line(
    task: str, options: dict[str, Any], said: str, short: Path, tmp_path: Path
) -> None:
    given = {**(CATCH if task == "toy/catch" else REACH), "steps": 60, "init_from": str(short), **options}
    with pytest.raises(pv.InputError, match=rf"^init_from: .*{said}") as caught:
        pv.train(task, run_dir=tmp_path / "run", **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_stops_at_its_score_and_continues_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The toy's returns are −1 and 1, so the first evaluation reaches −1, and none reaches 2."""
    path, options = tmp_path / "run", {**CATCH, "steps": 80}
    run = pv.train("toy/catch", run_dir=path, stop_at_score=-1, **options)
    assert run.stopped == f"the mean return {run.score:g} reaches stop_at_score -1"
    assert stopped.read(path) == (40, run.stopped)
    assert [e["step"] for e in lines(path, "evaluations")] == [40]
    job = Job("row", run.config, {}, path)
    assert sweep.state(job) == "finished"
    record = read(path)
    assert (record.finished, record.stopped) == (False, stopped.read(path))
    capsys.readouterr()
    again = pv.train("toy/catch", run_dir=path, stop_at_score=-1, resume=True, **options)
    assert (again.stopped, again.returns) == (run.stopped, run.returns)
    said = capsys.readouterr().err
    assert "was stopped at step 40 (the mean return" in said
    assert said.endswith("another stop_at_score continues it\n")
    # Without the record, as after a kill before it was written, the same evaluation stops the run again.
    (path / "stopped.json").unlink()
    assert pv.resume(path, quiet=True).stopped == run.stopped
    whole = pv.train("toy/catch", run_dir=tmp_path / "whole", **options)
    assert pv.resume(path, quiet=True, stop_at_score=2).stopped == ""
    assert not (path / "stopped.json").exists()
    same(path, whole.path)
    assert RunFolder.open(path).config().stop_at_score == 2
