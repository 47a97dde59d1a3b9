"""The probes that a table needs: the sweep takes them after training, as work of its engine, and resumes them."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from playvirtual.cli.main import main
from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.runs.folder import RunFolder
from playvirtual.study.engines import ray
from playvirtual.study.engines.engine import Outcome
from playvirtual.study.engines.local import LocalEngine, log_file
from playvirtual.study.probes.records import is_probed, recorded, save
from playvirtual.study.report.records import read
from playvirtual.study.sweep.display import display
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import Result, sort_out, sweep
from tests.study.untrained import write_run


class Pretender:
    """An engine that writes what runs and probes leave; work whose name it is told fails so many times."""

    def __init__(self, **failing: int) -> None:
        self.failing, self.started, self._running = failing, list[tuple[str, str]](), list[Job]()

    def room(self) -> bool:
        return len(self._running) < 2

    def start(self, job: Job) -> None:
        self.started.append((job.stage, job.config.method))
        self._running.append(job)

    def running(self) -> list[Job]:
        return self._running

    def wait(self, seconds: float) -> list[Outcome]:
        job = self._running.pop(0)
        if self.failing.get(job.stage, 0) > 0:
            self.failing[job.stage] -= 1
            return [Outcome(job, "broken")]
        if job.stage == "probe":
            save(job.path, job.probe, {"step": job.config.steps, "mse": 0.5})
        else:
            write_run(job.path, job.config.task, job.config.method, job.config.seed, 1.0, preset=job.config.preset)
        return [Outcome(job, None)]

    def stop(self) -> None: ...


def swept(out: Path, *, retries: int = 0, seeds: int = 1, **failing: int) -> tuple[list[tuple[str, str]], Result]:
    engine = Pretender(**failing)
    planned = jobs(experiment("dynamics-mse"), suite("toy/reach"), seeds, out)
    return engine.started, sweep(planned, engine, display(), retries)


def test_every_trained_run_is_probed_once_and_then_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started, result = swept(tmp_path)
    stages = [("train", "spr"), ("train", "playvirtual"), ("probe", "spr"), ("probe", "playvirtual")]
    assert sorted(started) == sorted(stages)
    for method in ("spr", "playvirtual"):
        assert started.index(("train", method)) < started.index(("probe", method))
    assert len(result.finished) == 2
    assert not result.failed
    out = capsys.readouterr().out
    assert "sweep: 2 runs, 0 finished before" in out
    assert "started   toy/reach  SPR  seed 1  probe dynamics" in out
    assert "sweep: 2/2 runs finished" in out
    assert [read(job.path).dynamics_mse for job in result.finished] == [0.5, 0.5]  # the report finds them


def test_what_is_done_is_not_done_again_and_what_is_missing_alone_is_done(tmp_path: Path) -> None:
    swept(tmp_path)
    assert swept(tmp_path)[0] == []
    probes = tmp_path / "toy-reach" / "spr-reference" / "seed-1" / "probes.json"
    probes.write_text("{")  # cut off
    assert swept(tmp_path)[0] == [("probe", "spr")]
    probes.write_text(json.dumps({"dynamics": {"step": 5, "mse": 0.5}}))  # of an earlier checkpoint
    assert swept(tmp_path)[0] == [("probe", "spr")]
    probes.write_text(json.dumps({"complexity": {"step": 2_000}}))  # of another kind
    assert swept(tmp_path)[0] == [("probe", "spr")]
    assert json.loads(probes.read_text()).keys() == {"complexity", "dynamics"}


def test_a_run_of_another_table_is_probed_and_not_trained_again(tmp_path: Path) -> None:
    run = tmp_path / "toy-reach" / "spr-reference" / "seed-1"
    write_run(run, "toy/reach", "spr", 1, 0.5, preset="reference", log_every=7)  # which a resumed run could not change
    found = jobs(experiment("dynamics-mse"), suite("toy/reach"), 1, tmp_path)
    finished, to_do, unreadable = sort_out(found)
    assert (finished, unreadable) == ([], {})
    assert [job.stage for job in to_do] == ["probe", "train"]
    assert to_do[0].command() == ["probe", str(run), "dynamics", "--device=auto"]


def test_a_probe_that_fails_is_tried_again_and_costs_no_training(tmp_path: Path) -> None:
    started, result = swept(tmp_path, retries=1, probe=1)
    assert [stage for stage, _ in started].count("train") == 2
    assert [stage for stage, _ in started].count("probe") == 3
    assert len(result.finished) == 2


def test_a_probe_that_keeps_failing_is_a_failed_run(tmp_path: Path) -> None:
    started, result = swept(tmp_path, retries=1, probe=4, train=1)  # a stage has its own attempts
    assert len(started) == 3 + 4
    assert set(result.failed.values()) == {"broken"}
    assert len(result.failed) == 2
    assert result.finished == []


def test_no_other_experiment_probes(tmp_path: Path) -> None:
    job = jobs(experiment("toy"), suite("toy/reach"), 1, tmp_path)[0]
    write_run(job.path, "toy/reach", job.config.method, 1, 0.5)
    assert sort_out([job])[0] == [job]


def test_the_plan_counts_a_run_as_finished_once_it_is_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "dynamics-mse", "--suite", "toy/reach", "--seeds=1", "--out", str(tmp_path), "--dry-run"]
    swept(tmp_path)
    assert main(words) == 0
    assert "2 runs, 2 finished; nothing to do" in capsys.readouterr().out
    (tmp_path / "toy-reach" / "spr-reference" / "seed-1" / "probes.json").unlink()
    assert main(words) == 0
    assert "2 runs, 1 finished; 1 to do, about 0 s with 1 at a time" in capsys.readouterr().out


def test_records_of_probes(tmp_path: Path) -> None:
    assert recorded(tmp_path, "dynamics", 10) is None
    save(tmp_path, "dynamics", {"step": 10, "mse": 0.5})
    assert recorded(tmp_path, "dynamics", 10) == {"step": 10, "mse": 0.5}
    assert recorded(tmp_path, "dynamics", 11) is None
    assert not is_probed(tmp_path, "complexity", 10)
    (tmp_path / "probes.json").write_text("[]")
    assert not is_probed(tmp_path, "dynamics", 10)
    with pytest.raises(ValueError, match=r"probes\.json cannot be read"):
        recorded(tmp_path, "dynamics", 10)


def probe_job(run: Path, probe: str) -> Job:
    config = RunFolder.open(run).config()
    return replace(Job("SPR", config, {"device": "cpu"}, run, probe=probe), stage="probe")


def test_a_worker_of_the_cluster_takes_the_probe(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["toy/catch"], tmp_path / "run"))
    ray._probe(str(run), "complexity", "cpu")
    found = recorded(run, "complexity", 100)
    assert found is not None
    assert found["parameters"] > 0


@pytest.mark.slow
def test_a_process_of_this_machine_takes_the_probe(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["toy/reach"], tmp_path / "run"))
    (run / "probes.json").unlink(missing_ok=True)
    job = probe_job(run, "complexity")
    engine = LocalEngine(1, device="cpu")
    engine.start(job)
    ended: list[Outcome] = []
    deadline = time.monotonic() + 120
    while not ended and time.monotonic() < deadline:
        ended = engine.wait(1.0)
    engine.stop()
    assert ended == [Outcome(job, None)]
    assert not log_file(job).exists()
    assert is_probed(run, "complexity", job.config.steps)


def test_runs_from_before_there_was_backward_prediction_are_finished_all_the_same(tmp_path: Path) -> None:
    job = jobs(experiment("toy"), suite("toy/reach"), 1, tmp_path)[0]
    write_run(job.path, "toy/reach", job.config.method, 1, 0.5)
    record = to_dict(build("toy/reach", method=job.config.method, seed=1))
    del record["objective"]["backward_prediction"]
    (job.path / "config.json").write_text(json.dumps(record))
    assert sort_out([job])[0] == [job]
    assert RunFolder.open(job.path).config().objective.backward_prediction is False
