"""Hosts that are lost without a word, which Ray waits for: their runs are started elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from playvirtual.runs.atomic_io import LOCK
from playvirtual.study.engines import ray as engine
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs


class Ray:
    """A cluster of two nodes whose tasks never end; it notes what is asked of it."""

    def __init__(self) -> None:
        self.alive = {"here": True, "there": True}
        self.submitted: list[tuple[str, float]] = []  # run folder, and the memory that was asked for
        self.cancelled: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": 8.0}
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": alive, "Resources": resources if alive else {}}
            for name, alive in self.alive.items()
        ]

    def remote(self, **_: object) -> Any:
        return lambda function: Function(self, 0.0)

    def wait(self, references: list[str], **_: object) -> tuple[list[str], list[str]]:
        return [], references

    def cancel(self, reference: str, *, force: bool) -> None:
        assert force
        self.cancelled.append(reference)


class Function:
    """A remote function with the memory that it asks for."""

    def __init__(self, ray: Ray, memory: float) -> None:
        self.ray, self.memory = ray, memory

    def options(self, *, memory: float) -> Function:
        return Function(self.ray, memory)

    def remote(self, arguments: dict[str, Any]) -> str:
        self.ray.submitted.append((Path(arguments["run_dir"]).name, self.memory))
        return f"{arguments['run_dir']} {len(self.ray.submitted)}"


def lock(job: Job, host: str) -> None:
    """What the run does when it begins on that host."""
    job.path.mkdir(parents=True, exist_ok=True)
    (job.path / LOCK).write_text(f"process 7 on {host}\n")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    monkeypatch.setattr(engine, "connect", lambda address: found)
    monkeypatch.setattr(engine, "NODES_SECONDS", -1.0)
    return found


def test_runs_of_a_host_that_is_gone_are_started_again_and_others_left_alone(
    cluster: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, queued = jobs(experiment("toy"), suite("toy/catch"), 3, tmp_path, options={"device": "cpu"})[:3]
    started = engine.RayEngine("anywhere")
    for job in (here, there, queued):
        started.start(job)
    lock(here, "here")
    lock(there, "there")
    started.wait(0.0)
    assert len(cluster.submitted) == 3

    cluster.alive["there"] = False
    started.wait(0.0)
    assert cluster.cancelled == []  # Ray has some seconds to do it by itself
    monkeypatch.setattr(engine, "LOST_SECONDS", -1.0)
    started.wait(0.0)
    again = [there.path.name, queued.path.name]
    assert [Path(reference.split()[0]).name for reference in cluster.cancelled] == again
    assert cluster.submitted[3:] == [(name, 1.0) for name in again]
    assert started.running() == [here]

    lock(there, "here")
    started.wait(0.0)
    assert len(cluster.submitted) == 5  # once for each node that died
    assert started.running() == [here, there]

    cluster.alive |= {"there": True, "third": False}
    started.wait(0.0)
    assert cluster.submitted[5:] == [(queued.path.name, 2.0)]


def test_nodes_that_died_before_the_sweep_are_no_news(
    cluster: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOST_SECONDS", -1.0)
    cluster.alive["there"] = False
    started = engine.RayEngine("anywhere")
    started.start(jobs(experiment("toy"), suite("toy/catch"), 1, tmp_path, options={"device": "cpu"})[0])
    started.wait(0.0)
    assert cluster.cancelled == []
