"""Probes of trained runs, and runs on the fixed encoder of another."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.cli import main
from playvirtual.errors import InputError
from playvirtual.study import probes
from playvirtual.study.complexity import parameters
from playvirtual.study.engines import Outcome
from playvirtual.study.experiments import experiment, suite
from playvirtual.study.grids import Job, jobs
from playvirtual.study.probes import CHUNK, Transition, dynamics_mse, mean_squared_error
from playvirtual.study.records import read
from playvirtual.study.report import report
from playvirtual.study.sweep import Result, sweep
from playvirtual.study.sweep_display import display
from playvirtual.training import checkpoint
from playvirtual.training.pretrained import agent_state
from tests.study.test_report import write_run

COMMON: dict[str, Any] = {"device": "cpu", "quiet": True, "log_every": 20, "checkpoint_every": 0, "hidden": 16}
CATCH = {**COMMON, "steps": 100, "min_size": 40, "episodes": 2, "every": 0, "batch_size": 8}
REACH = {**COMMON, "steps": 80, "min_size": 40, "episodes": 2, "every": 0, "batch_size": 8, "auxiliary_batch_size": 4}
TOYS = {"toy/catch": CATCH, "toy/reach": REACH}
FROZEN = ("frozen-encoder", "frozen-encoder-reference")
STATE_OF_ENCODER = {"toy/catch": ("online", "target_encoder"), "toy/reach": ("critic", "target_critic")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small finished run of SPR on each toy."""
    root = tmp_path_factory.mktemp("runs")
    return {
        task: pv.train(
            task, method="spr", K=2, run_dir=root / task.replace("/", "-") / "spr" / "seed-1", **options
        ).path
        for task, options in TOYS.items()
    }


def encoders(run: Path, task: str) -> list[dict[str, Tensor]]:
    """The weights of the encoder and of its target in a run's newest checkpoint."""
    state = agent_state(checkpoint.newest(run))
    found = []
    for part in STATE_OF_ENCODER[task]:
        named = {k.removeprefix("encoder."): v for k, v in state[part].items() if k.startswith("encoder.")}
        found.append(named or dict(state[part]))  # Rainbow keeps its target encoder by itself
    return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# The error of dynamics models


def test_the_error_is_the_mean_over_dimensions_and_transitions() -> None:
    def encode(observations: np.ndarray) -> Tensor:  # type: ignore[type-arg]
        return torch.as_tensor(observations.reshape(len(observations), -1)[:, :2]).float()

    count = 2 * CHUNK + 7  # the last chunk is not full
    pixels = np.zeros((count + 1, 1, 1, 2), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(count + 1)
    steps = [Transition(pixels[i], np.asarray(1.0), pixels[i + 1]) for i in range(count)]
    move = torch.tensor([1.0, 0.0])
    assert mean_squared_error(encode, lambda z, a: z + a[:, None] * move, steps) == 0.0
    assert mean_squared_error(encode, lambda z, a: z, steps) == 0.5  # off by 1 in one of two dimensions
    assert mean_squared_error(encode, lambda z, a: z + 3 * move, steps) == 2.0


@pytest.mark.parametrize("task", TOYS)
def test_a_runs_dynamics_model_is_probed_and_the_run_left_as_it_is(task: str, runs: dict[str, Path]) -> None:
    before = {p: p.read_bytes() for p in runs[task].rglob("*") if p.is_file() and p.name != "probes.json"}
    error = dynamics_mse(runs[task], transitions=130, device="cpu")
    assert 0.0 < error < 10.0
    assert dynamics_mse(runs[task], transitions=130, device="cpu") == error
    assert dynamics_mse(runs[task], transitions=130, seed=9, device="cpu") != error
    assert {p: p.read_bytes() for p in before} == before


def test_the_probe_asks_for_as_many_transitions_as_it_was_told(runs: dict[str, Path]) -> None:
    config = probes.RunFolder.open(runs["toy/catch"]).config()
    rng = np.random.default_rng(0)
    found = list(probes._play(lambda seen: rng.integers(3, size=len(seen)), config, 57, seed=1))
    assert len(found) == 57
    # Inside an episode the next observation is the one the next action is chosen for.
    joined = [np.array_equal(a.next_observation, b.observation) for a, b in pairwise(found)]
    assert 57 // 2 < sum(joined) < 56


def test_the_command_prints_and_keeps_what_the_report_shows(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["toy/reach"]
    assert main(["probe", str(run), "dynamics", "--transitions", "40", "--device", "cpu"]) == 0
    assert main(["probe", str(run), "complexity"]) == 0
    out = capsys.readouterr().out
    kept = json.loads((run / "probes.json").read_text())
    assert f"mean squared error {kept['dynamics']['mse']:.4f} over 40 transitions (seed 1)" in out
    assert "paper: no number for spr on toy/reach" in out
    assert kept["dynamics"] == {"step": 80, "mse": read(run).dynamics_mse, "transitions": 40, "seed": 1}
    assert f"trainable parameters: {kept['complexity']['parameters']:,}" in out
    assert kept["complexity"]["seconds_per_1000_updates"] > 0
    report([run], tmp_path / "out")
    table = (tmp_path / "out" / "tables" / "dynamics-mse.csv").read_text().splitlines()
    assert table[1] == f'"toy/reach, 80 steps",spr,{kept["dynamics"]["mse"]:.4f},1,—'


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


def test_what_has_no_dynamics_model_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    rl = pv.train("toy/catch", method="rl", run_dir=tmp_path / "rl", **CATCH).path
    with pytest.raises(InputError, match=r"rl' has no dynamics model \(its method is rl\)"):
        dynamics_mse(rl)
    exported = pv.export(runs["toy/catch"], tmp_path / "small")
    with pytest.raises(InputError, match="is an export, which has no dynamics model"):
        dynamics_mse(exported)
    with pytest.raises(InputError, match="transitions: 0 is not allowed"):
        dynamics_mse(runs["toy/catch"], 0)
    with pytest.raises(InputError, match="'dynamic' is not known; did you mean 'dynamics'"):
        probes.probe(runs["toy/catch"], "dynamic")


def test_the_report_sets_both_analyses_beside_the_paper(tmp_path: Path) -> None:
    for seed in (1, 2):
        for method, score in (("rl", 300.0), ("spr", 400.0), ("playvirtual", 500.0)):
            path = tmp_path / "runs" / method / f"seed-{seed}"
            write_run(path, "dmc/cheetah-run", method, seed, score)
            found = {"step": 100_000 if method == "spr" else 5_000, "mse": 0.07 + seed / 100}  # one is out of date
            (path / "probes.json").write_text(json.dumps({"dynamics": found}))
        lender = str(tmp_path / "runs" / "spr" / f"seed-{seed}")
        write_run(tmp_path / f"f{seed}", "dmc/cheetah-run", "rl", seed, 450.0 + seed, encoder_from=lender)
    report([tmp_path], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "dynamics-mse.csv").read_text().splitlines()
    assert rows[1:] == ["dmc/cheetah-run,spr,0.0850 ± 0.0071,2,0.0731"]
    rows = (tmp_path / "out" / "tables" / "frozen-encoder.csv").read_text().splitlines()
    assert rows[1] == "dmc/cheetah-run,none,300.0 ± 0.00,2,388.0 ± 89.0"
    assert rows[2] == "dmc/cheetah-run,spr,451.5 ± 0.71,2,478.0 ± 30.0"


def test_scores_on_fixed_encoders_are_told_apart_by_preset(tmp_path: Path) -> None:
    for preset, lender, none, lent in (("paper", "spr", 300.0, 450.0), ("reference", "spr-reference", 200.0, 350.0)):
        write_run(tmp_path / preset / "rl", "dmc/cheetah-run", "rl", 1, none, preset=preset)
        encoder = str(tmp_path / lender / "seed-1")
        write_run(tmp_path / preset / "f", "dmc/cheetah-run", "rl", 1, lent, preset=preset, encoder_from=encoder)
    report([tmp_path], tmp_path / "out")
    tables = tmp_path / "out" / "tables"
    rows = {name: (tables / f"{name}.csv").read_text().splitlines()[1:] for name in FROZEN}
    assert rows["frozen-encoder"] == [
        "dmc/cheetah-run,none,300.0,1,388.0 ± 89.0",
        "dmc/cheetah-run,spr,450.0,1,478.0 ± 30.0",
    ]
    assert rows["frozen-encoder-reference"] == [
        "dmc/cheetah-run,none,200.0,1,388.0 ± 89.0",
        "dmc/cheetah-run,spr-reference,350.0,1,478.0 ± 30.0",
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(f"Scores on fixed encoders (preset {preset})" in page for preset in ("paper", "reference"))


# Fixed encoders


@pytest.mark.parametrize("task", TOYS)
def test_an_encoder_that_was_taken_over_stays_as_it_is(task: str, runs: dict[str, Path], tmp_path: Path) -> None:
    options = {**TOYS[task], "method": "rl", "encoder_from": str(runs[task])}
    run = pv.train(task, run_dir=tmp_path / "a", **options).path
    (wanted, _), found = encoders(runs[task], task), encoders(run, task)
    assert same(found[0], wanted)
    assert same(found[1], wanted)
    state, fresh = (
        agent_state(checkpoint.newest(run)),
        pv.train(task, method="rl", run_dir=tmp_path / "b", **TOYS[task]),
    )
    assert not same(encoders(fresh.path, task)[0], wanted)
    assert pv.load(run).parameter_count() < pv.load(fresh.path).parameter_count()
    # No optimiser knows it: none has moments for as many tensors as without `encoder_from`.
    other = agent_state(checkpoint.newest(fresh.path))
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
    weights = [pv.load(path).weights() for path in (whole, again)]
    assert same(*weights)
    losses = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    norm = "grad_norm_stem" if task == "toy/catch" else "grad_norm_critic"
    assert losses[-1][norm] > 0


def test_it_can_be_resumed(runs: dict[str, Path], tmp_path: Path) -> None:
    options = {**CATCH, "method": "rl", "encoder_from": str(runs["toy/catch"]), "checkpoint_every": 70}
    whole = pv.train("toy/catch", run_dir=tmp_path / "a", **options).path
    part = pv.train("toy/catch", run_dir=tmp_path / "b", **options).path
    last = checkpoint.newest(part)
    checkpoint.put_aside(last)  # as if it had been stopped after step 70
    (part / "evaluations.jsonl").unlink()
    pv.resume(part, quiet=True)
    assert same(pv.load(part).weights(), pv.load(whole).weights())
    assert (part / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_what_cannot_lend_its_encoder_is_refused_before_anything_is_written(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    def refused(message: str, task: str = "toy/catch", **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            pv.train(task, run_dir=tmp_path / "new", **{**TOYS[task], "method": "rl", **options})
        assert not (tmp_path / "new").exists()

    catch, reach = str(runs["toy/catch"]), str(runs["toy/reach"])
    refused("encoder_from: run: 'nowhere' is not a run folder", encoder_from="nowhere")
    refused("learned toy/reach; allowed: a run of toy/catch or one of its kind", encoder_from=reach)
    refused(r"has another encoder \(latent: 64 there, 32 here\)", encoder_from=catch, latent=32)
    refused("encoder_tanh: True there, False here", task="toy/reach", encoder_from=reach, encoder_tanh="false")
    refused("a fixed encoder learns from no prediction, but K is 3", encoder_from=catch, method="spr")
    write_run(tmp_path / "begun", "toy/catch", "spr", 1, 0.5)
    refused("encoder_from: run: .*begun' has no checkpoint yet", encoder_from=str(tmp_path / "begun"))


def test_an_encoder_for_pictures_of_other_channels_is_refused(tmp_path: Path) -> None:
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

    def wait(self, seconds: float) -> list[Outcome]:
        job = self._running.pop()  # the later one first, so that order is not a matter of luck
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


def test_without_its_encoder_a_run_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
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
    assert probes.RunFolder.open(tmp_path / "old").config().encoder_from == ""
    assert read(tmp_path / "old").changed == {}
