"""A real Ray cluster of two nodes on this machine: a worker and a node are lost in mid-sweep, no result is."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.errors import InputError
from playvirtual.runs.checkpoint import complete
from playvirtual.runs.folder import RunFolder
from playvirtual.study.sweep.display import PlainLines
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import Display, sweep
from tests.waiting import HANG, wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

OPTIONS = {
    "steps": 600,
    "learning_starts": 100,
    "K": 2,
    "eval_episodes": 4,
    "eval_every": 50,
    "log_every": 50,
    "device": "cpu",
}


def grid(out: Path) -> list[Job]:
    return jobs(experiment("toy"), suite("toy/catch"), 1, out, options=OPTIONS)


class Killer:
    """Kills the first run's worker, then a node, once the runs there have written something."""

    def __init__(self, cluster: Any, node: Any, found: list[Job]) -> None:
        self.cluster, self.node, self.jobs = cluster, node, found
        self.killed: list[str] = []
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        first = self._holder(self.jobs, set())
        os.kill(first, signal.SIGKILL)
        self.killed.append(f"worker {first}")
        self._holder(self.jobs, {first})
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.killed.append("node")

    def _holder(self, found: list[Job], dead: set[int]) -> int:
        """The process of an unfinished run that has reached its first evaluation and is not one of `dead`."""
        holders: list[int] = []

        def reached() -> bool:
            for job in found:
                lock, lines = job.path / "run.lock", job.path / "evaluations.jsonl"
                if lines.exists() and 1 <= len(lines.read_text().splitlines()) < 9 and lock.exists():
                    words = lock.read_text().split()
                    if len(words) > 1 and int(words[1]) not in dead and Path(f"/proc/{words[1]}").exists():
                        holders.append(int(words[1]))
            return bool(holders)

        wait_until(reached, "the first evaluation of a run")
        return holders[0]


@pytest.mark.long
@pytest.mark.slow(seconds=90)
def test_lost_workers_and_nodes_cost_no_result(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    from playvirtual.study.engines.ray import RayEngine

    # A node that refuses five connections in a row is lost, as by default, but the next is made sooner.
    eager = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": eager})
    node = cluster.add_node(num_cpus=1)
    try:
        found = grid(tmp_path / "ray")
        killer = Killer(cluster, node, found)
        engine = RayEngine(cluster.address)
        killer.thread.start()
        display: Display = PlainLines()
        result = sweep(found, engine, display)
        killer.thread.join(HANG)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert result.failed == {}
    assert [word.split()[0] for word in killer.killed] == ["worker", "node"]
    assert len(result.finished) == len(found) == 3

    for one, other in zip(found, grid(tmp_path / "alone"), strict=True):
        pv.train(**other.arguments(), quiet=True)
        for name in ("evaluations.jsonl", "metrics.jsonl"):
            assert (one.path / name).read_text() == (other.path / name).read_text(), one.title


@pytest.mark.slow
def test_a_signal_leaves_checkpoints_and_names_the_command_that_resumes(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does it: the signal goes to every process of the group, Ray's own among them."""
    words = ["sweep", "toy", "--suite", "toy/catch", "--rows", "playvirtual", "--seeds", "99", "--eval-every", "0"]
    words += ["--checkpoint-every=0", "--log-every=50", "--engine", "ray", "--address", "local", "--gpus-per-run=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "playvirtual", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore::FutureWarning"},  # of older versions of Ray
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    run = tmp_path / "runs" / "toy-catch" / "playvirtual" / "seed-1"
    wait_until((run / "metrics.jsonl").exists, "the first line of metrics.jsonl")
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 130, stderr
    started = stdout.count("started   toy/catch")
    assert 1 <= started < 99  # the rest waited in Ray's queue
    assert f"0/99 runs finished, {started} running, {99 - started} waiting" in stdout
    command = shlex.join(["playvirtual", *words])
    assert stderr == f"stopped with 99 runs to go; resume with the same command: {command}\n"
    assert len(complete(run)) == 1
    assert RunFolder(run).config().device == "cpu"  # whatever GPUs its node has


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What starts a cluster of this process starts one, and it ends with the test."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_can_never_work_is_refused_or_tried_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "toy-catch" / "rl" / "seed-1" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not a run")
    words = ["sweep", "toy", "--suite", "toy/catch", "--rows", "rl", "--seeds", "1", "--out", str(tmp_path)]
    words += ["--engine", "ray", "--address", "local", "--gpus-per-run", "0", "--retries", "3"]
    assert main([*words, "--device", "cuda"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("playvirtual: error: device: 'cuda' is not allowed with gpus_per_run 0"), said
    assert main([*words, "--device", "cpu"]) == 1
    out, said = capfd.readouterr()
    assert out.count("started   toy/catch  RL  seed 1") == 1
    assert f"run_dir: {str(foreign.parent)!r}" in said


def test_an_unreachable_address_is_an_error_before_ray_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise AssertionError("Ray tries an address for a minute")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # a port that nobody else has and nobody listens at
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["sweep", "toy", "--engine", "ray", "--address", address]) == 2
    said = f"playvirtual: error: address: no Ray cluster at {address!r} (Connection refused)\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_none_is_refused() -> None:
    from playvirtual.study.engines.ray import RayEngine

    with pytest.raises(InputError, match="'here:there' is not allowed; allowed: HOST:PORT"):
        RayEngine("here:there")
