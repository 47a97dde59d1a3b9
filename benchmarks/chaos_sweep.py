"""Sweeps on a Ray cluster whose workers and nodes are killed at random, and compares with a sweep that nobody disturbs.

    python benchmarks/chaos_sweep.py --workers 6 --nodes 2

The cluster is a head and the nodes that will be killed, all on this machine, with a CPU each. A worker is a run's
process, killed by SIGKILL; a node is killed with all its runs. In the end metrics.jsonl and evaluations.jsonl of every
run must equal those of a run on this machine alone, byte for byte. `two_hosts.py` loses hosts that are apart.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from script import Parser, run, whole

import playvirtual as pv
from playvirtual.runs import jsonl
from playvirtual.runs.atomic_io import LOCK
from playvirtual.study.sweep.display import PlainLines
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.sweep import sweep

OPTIONS: dict[str, Any] = {
    **{"steps": 1000, "learning_starts": 100, "K": 2, "eval_episodes": 4, "eval_every": 100},
    **{"log_every": 25, "checkpoint_every": 50, "device": "cpu"},
}
FILES = ("metrics.jsonl", "evaluations.jsonl")
# A node that refuses five connections in a row is lost, as by default, but the next is made sooner.
EAGER = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}


def grid(out: Path, seeds: int) -> list[Job]:
    """The runs: three methods on one toy."""
    return jobs(experiment("toy"), suite("toy/catch"), seeds, out, options=OPTIONS)


class Killer(threading.Thread):
    """Kills workers and nodes in random order, each after runs have made some progress."""

    def __init__(
        self, cluster: Any, nodes: list[Any], found: list[Job], kinds: list[str], chance: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self.cluster, self.nodes, self.jobs, self.kinds, self.chance = cluster, nodes, found, kinds, chance
        self.ended = threading.Event()
        self.killed: list[str] = []
        self.dead = set[int]()  # processes

    def run(self) -> None:
        """Until everything is killed that should be, or the sweep has ended."""
        for kind in self.kinds:
            while not (running := self._running()):
                if self.ended.wait(0.05):
                    return
            if self.ended.wait(self.chance.uniform(0.0, 3.0)):
                return
            if kind == "node":
                self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
                self.killed.append(kind)
                print("killed    a node", flush=True)
            else:
                job, process = self.chance.choice(sorted(running.items(), key=str))
                self.dead.add(process)
                step = jsonl.last(job, "metrics").get("step")
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    self.kinds.append(kind)  # it has ended meanwhile: another one later
                    continue
                self.killed.append(kind)
                print(f"killed    process {process} of {job.name} at step {step}", flush=True)

    def _running(self) -> dict[Path, int]:
        """Run folder → process of the runs that have logged something and are not finished."""
        found = {}
        for job in self.jobs:
            step = jsonl.last(job.path, "metrics").get("step", 0)
            words = (job.path / LOCK).read_text().split() if (job.path / LOCK).exists() else []
            process = int(words[1]) if len(words) > 1 else 0
            if process and process not in self.dead and 0 < step < job.config.steps and _alive(process):
                found[job.path] = process
        return found


def _alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def main() -> int:
    """Prints the sweep, then a line with what was killed; the exit code is 1 if a run failed or differs."""
    parser = Parser(__doc__)
    parser.add_argument("--seeds", type=whole(1), default=3, help="of each of the three methods (default: 3)")
    parser.add_argument("--workers", type=whole(0), default=6, help="to kill (default: 6)")
    parser.add_argument("--nodes", type=whole(0), default=2, help="to kill (default: 2)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the moments and the order (default: 0)")
    options = parser.parse_args()
    import ray
    from ray.cluster_utils import Cluster

    from playvirtual.study.engines.ray import RayEngine

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chance = random.Random(options.seed)
    kinds = ["worker"] * options.workers + ["node"] * options.nodes
    chance.shuffle(kinds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": EAGER})
        try:
            nodes = [cluster.add_node(num_cpus=1) for _ in range(options.nodes)]
            found = grid(Path(folder) / "ray", options.seeds)
            killer = Killer(cluster, nodes, found, kinds, chance)
            engine = RayEngine(cluster.address)
            killer.start()
            result = sweep(found, engine, PlainLines())
            killer.ended.set()
            killer.join(60.0)
        finally:
            ray.shutdown()
            cluster.shutdown()
        different = []
        for one, alone in zip(found, grid(Path(folder) / "alone", options.seeds), strict=True):
            pv.train(**alone.arguments(), quiet=True)
            different += [f"{one.title}: {n}" for n in FILES if _bytes(one.path / n) != _bytes(alone.path / n)]
    killed = ", ".join(f"{killer.killed.count(kind)} {kind}s" for kind in ("worker", "node"))
    print(f"killed {killed} of {len(kinds)} planned; {len(result.finished)} of {len(found)} runs finished, ", end="")
    print(f"{f'these differ: {different}' if different else 'all identical'}; {time.monotonic() - began:.0f} s")
    return int(bool(result.failed or different))


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


if __name__ == "__main__":
    run(main)
