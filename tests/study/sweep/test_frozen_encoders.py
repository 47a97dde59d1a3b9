"""Runs on the frozen encoder of another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.agents.agent import num_trainable_parameters, policy_state_dict
from playvirtual.errors import InputError
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import read_agent_state
from playvirtual.runs.folder import RunFolder
from playvirtual.study.engines.engine import Outcome
from playvirtual.study.report.records import read
from playvirtual.study.sweep.display import display
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import Result, sweep
from tests.study.toys import CATCH, TOYS
from tests.study.untrained import write_run

STATE_OF_ENCODER = {"toy/catch": ("online", "target_encoder"), "toy/reach": ("critic", "target_critic")}


def encoders(run: Path, task: str) -> list[dict[str, Tensor]]:
    """The weights of the encoder and of its target in a run's newest checkpoint."""
    state = read_agent_state(checkpoint.newest(run))
    found = []
    for part in STATE_OF_ENCODER[task]:
        named = {k.removeprefix("encoder."): v for k, v in state[part].items() if k.startswith("encoder.")}
        found.append(named or dict(state[part]))  # Rainbow keeps its target encoder by itself
    return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("task", TOYS)
def test_a_loaded_encoder_is_frozen(task: str, runs: dict[str, Path], tmp_path: Path) -> None:
    options = {**TOYS[task], "method": "rl", "encoder_from": str(runs[task])}
    run = pv.train(task, run_dir=tmp_path / "a", **options).path
    (wanted, _), found = encoders(runs[task], task), encoders(run, task)
    assert same(found[0], wanted)
    assert same(found[1], wanted)
    state, fresh = (
        read_agent_state(checkpoint.newest(run)),
        pv.train(task, method="rl", run_dir=tmp_path / "b", **TOYS[task]),
    )
    assert not same(encoders(fresh.path, task)[0], wanted)
    assert num_trainable_parameters(pv.load(run).unwrapped) < num_trainable_parameters(pv.load(fresh.path).unwrapped)
    # No optimizer knows it: none has moments for as many tensors as without `encoder_from`.
    other = read_agent_state(checkpoint.newest(fresh.path))
    mine, theirs = (
        (s["optimizer"] if "optimizer" in s else s["optimizers"]["critic"])["state"] for s in (state, other)
    )
    assert len(theirs) - len(mine) == len(wanted)


@pytest.mark.parametrize("task", TOYS)
def test_the_rest_learns_and_the_same_seed_gives_the_same_run(task: str, runs: dict[str, Path], tmp_path: Path) -> None:
    options = {**TOYS[task], "method": "rl", "encoder_from": str(runs[task])}
    whole = pv.train(task, run_dir=tmp_path / "a", **options).path
    again = pv.train(task, run_dir=tmp_path / "b", **options).path
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    weights = [policy_state_dict(pv.load(path).unwrapped) for path in (whole, again)]
    assert same(*weights)
    losses = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    norm = "grad_norm_stem" if task == "toy/catch" else "grad_norm_critic"
    assert losses[-1][norm] > 0


def test_it_resumes_from_anywhere_and_without_the_run_that_its_encoder_is_from(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs["toy/catch"], tmp_path / "pretrained")
    monkeypatch.chdir(tmp_path)
    options = {**CATCH, "method": "rl", "encoder_from": "pretrained", "checkpoint_every": 70}
    whole = pv.train("toy/catch", run_dir=tmp_path / "a", **options).path
    part = pv.train("toy/catch", run_dir=tmp_path / "b", **options).path
    last = checkpoint.newest(part)
    checkpoint.quarantine(last)  # as if it had been stopped after step 70
    (part / "evaluations.jsonl").unlink()
    monkeypatch.chdir("/")
    shutil.rmtree(tmp_path / "pretrained")
    pv.resume(part, quiet=True)
    assert same(policy_state_dict(pv.load(part).unwrapped), policy_state_dict(pv.load(whole).unwrapped))
    assert (part / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_one_that_has_no_checkpoint_yet_needs_the_run_that_its_encoder_is_from(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(runs["toy/catch"], tmp_path / "pretrained")
    options = {**CATCH, "method": "rl", "encoder_from": str(tmp_path / "pretrained")}
    run = pv.train("toy/catch", run_dir=tmp_path / "a", **options).path
    (run / "evaluations.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    (tmp_path / "pretrained").rename(tmp_path / "moved")
    with pytest.raises(InputError, match=r"encoder_from: run: .*pretrained' is not there"):
        pv.resume(run, quiet=True)
    (tmp_path / "moved").rename(tmp_path / "pretrained")
    pv.resume(run, quiet=True)
    assert same(encoders(run, "toy/catch")[0], encoders(runs["toy/catch"], "toy/catch")[0])


def test_the_encoder_is_that_of_the_latest_valid_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrained = pv.train("toy/catch", method="spr", run_dir=tmp_path / "a", **{**CATCH, "checkpoint_every": 70}).path
    (checkpoint.newest(pretrained) / "state.safetensors").write_bytes(b"")
    run = pv.train("toy/catch", method="rl", run_dir=tmp_path / "b", encoder_from=str(pretrained), **CATCH).path
    assert "using the one before" in capsys.readouterr().err
    checkpoint.quarantine(checkpoint.newest(pretrained))
    assert same(encoders(run, "toy/catch")[0], encoders(pretrained, "toy/catch")[0])


def test_an_encoder_that_does_not_fit_is_refused_before_anything_is_written(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    def refused(message: str, task: str = "toy/catch", **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            pv.train(task, run_dir=tmp_path / "new", **{**TOYS[task], "method": "rl", **options})
        assert not (tmp_path / "new").exists()

    catch, reach = str(runs["toy/catch"]), str(runs["toy/reach"])
    refused("encoder_from: run: 'nowhere' is not there", encoder_from="nowhere")
    refused("learned toy/reach; allowed: a run of toy/catch or one of its kind", encoder_from=reach)
    refused(r"has another encoder \(latent: 64 there, 32 here\)", encoder_from=catch, latent=32)
    refused("encoder_tanh: True there, False here", task="toy/reach", encoder_from=reach, encoder_tanh="false")
    refused("background: 0.0 there, 0.5 here", encoder_from=catch, background=0.5)
    refused("has the agent 'rainbow'; allowed: a run of the agent 'der', as this one", encoder_from=catch, method="der")
    refused("a fixed encoder learns from no prediction, but K is 3", encoder_from=catch, method="spr")
    write_run(tmp_path / "begun", "toy/catch", "spr", 1, 0.5)
    refused("encoder_from: run: .*begun' has no checkpoint yet", encoder_from=str(tmp_path / "begun"))


def test_an_encoder_whose_states_were_rescaled_is_refused_where_they_are_not(tmp_path: Path) -> None:
    """DrQ's encoder rescales its states for dynamics models, and does not without them."""
    plain, predicted = (
        pv.train("toy/catch", method=method, run_dir=tmp_path / method, **CATCH).path
        for method in ("drq", "drq-virtual")
    )
    with pytest.raises(InputError, match="makes other states with the same weights here than there"):
        pv.train("toy/catch", method="drq", run_dir=tmp_path / "new", encoder_from=str(predicted), **CATCH)
    assert not (tmp_path / "new").exists()
    pv.train("toy/catch", method="drq", run_dir=tmp_path / "new", encoder_from=str(plain), **CATCH)


def test_an_encoder_for_images_of_other_channels_is_refused(tmp_path: Path) -> None:
    options = {**CATCH, "steps": 50, "max_episode_frames": 20}
    breakout = pv.train("minatar/breakout", method="rl", run_dir=tmp_path / "a", **options).path
    with pytest.raises(InputError, match="has other shapes than this task's"):
        pv.train("minatar/seaquest", method="rl", run_dir=tmp_path / "b", encoder_from=str(breakout), **options)
    assert not (tmp_path / "b").exists()


class OneAtATime:
    """An engine that writes down the order of runs and makes those of one setting fail."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.started, self._running = failing, list[str](), list[Job]()

    def room(self) -> bool:
        return len(self._running) < 2

    def start(self, job: Job) -> None:
        self.started.append(job.path.parent.name)
        self._running.append(job)

    def running(self) -> list[Job]:
        return self._running

    def wait(self, seconds: float) -> list[Outcome]:
        job = self._running.pop()  # the later one ends first
        return [Outcome(job, "broken" if job.path.parent.name == self.failing else None)]

    def stop(self) -> None: ...


def stages(out: Path, failing: str = "") -> tuple[list[str], Result]:
    engine = OneAtATime(failing)
    planned = jobs(experiment("frozen-encoder"), suite("toy/catch"), 2, out)
    return engine.started, sweep(planned, engine, display(), retries=0)


def test_a_sweep_waits_for_the_encoders_it_needs(tmp_path: Path) -> None:
    started, result = stages(tmp_path)
    assert len(started) == len(result.finished) == 10
    ended = [job.path for job in result.finished]
    for job in result.finished:
        assert job.after is None or ended.index(job.after) < ended.index(job.path)


def test_without_its_encoder_a_run_is_given_up_and_the_others_finish(tmp_path: Path) -> None:
    started, result = stages(tmp_path, failing="spr")
    assert "rl-encoder_fromspr" not in started
    assert started.count("rl-encoder_fromplayvirtual") == 2
    lost = {path.parent.name: error for path, error in result.failed.items()}
    assert lost.keys() == {"spr", "rl-encoder_fromspr"}
    assert "spr/seed-2, which has failed" in lost["rl-encoder_fromspr"]
    assert not result.waiting


def test_runs_of_earlier_versions_have_encoders_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "old", "toy/catch", "spr", 1, 0.5)
    file = tmp_path / "old" / "config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "encoder_from"}))
    assert RunFolder.open(tmp_path / "old").config().encoder_from == ""
    assert read(tmp_path / "old").changed == {}
