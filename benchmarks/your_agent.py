"""The examples of docs/your-agent.md with and without PlayVirtual's objective: returns, CPU time, a plot, a table.

python benchmarks/your_agent.py run        # the runs that results/your-agent lacks, one after another on one core
python benchmarks/your_agent.py report     # writes curves.png and prints the table
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "your-agent"
SEEDS = (0, 1, 2)
OBJECTIVES = {"none": ["--plain"], "playvirtual": []}
# Host → the example's command.
HOSTS = {
    "sb3-dqn": ["sb3_playvirtual.py", "dqn", "--steps", "3000", "--every", "250"],
    "sb3-sac": ["sb3_playvirtual.py", "sac", "--steps", "2000", "--every", "250"],
    "cleanrl-dqn": ["cleanrl_style_dqn.py", "--steps", "7000", "--every", "500"],
}
RETURNS, TIMES = RESULTS / "returns.csv", RESULTS / "times.csv"
HEADERS = {RETURNS: "host,env,objective,seed,step,mean_return", TIMES: "host,objective,seed,cpu_seconds"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run() -> None:
    """One run after another; those whose CPU time is recorded are complete."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path, header in HEADERS.items():
        if not path.exists():
            path.write_text(f"{header}\n")
    done = {(row["host"], row["objective"], int(row["seed"])) for row in rows(TIMES)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for seed in SEEDS:
        for host, command in HOSTS.items():
            for objective, options in OBJECTIVES.items():
                if (host, objective, seed) in done:
                    continue
                script = [sys.executable, str(ROOT / "examples" / command[0]), *command[1:]]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                words = [*script, *options, "--seed", str(seed), "--csv", str(RETURNS)]
                subprocess.run(words, check=True, env=environment)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                with TIMES.open("a") as file:
                    print(host, objective, seed, f"{seconds:.1f}", sep=",", file=file)


def report() -> None:
    """Curves of every run with their mean, and a table of the mean return over a run and at its end."""
    curves: dict[tuple[str, str], dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    envs = {}
    for row in rows(RETURNS):
        curves[row["host"], row["objective"]][int(row["seed"])].append((int(row["step"]), float(row["mean_return"])))
        envs[row["host"]] = row["env"]
    seconds = defaultdict(list)
    for row in rows(TIMES):
        seconds[row["host"], row["objective"]].append(float(row["cpu_seconds"]))
    figure, axes = plt.subplots(1, len(HOSTS), figsize=(4 * len(HOSTS), 3.2), layout="constrained")
    print("| host | environment | objective | seeds | mean over the run | at its end, each seed | CPU s per run |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for host, axis in zip(HOSTS, axes, strict=True):
        for objective, color in zip(OBJECTIVES, ("tab:gray", "tab:blue"), strict=True):
            seeds = [
                np.array(sorted(curve)) for _, curve in sorted(curves[host, objective].items())
            ]  # (evaluations, 2)
            values = np.array([curve[:, 1] for curve in seeds])  # (seeds, evaluations)
            for curve in seeds:
                axis.plot(curve[:, 0], curve[:, 1], color=color, alpha=0.3, linewidth=1)
            axis.plot(seeds[0][:, 0], values.mean(0), color=color, label=objective)
            over, end = values.mean(1), ", ".join(f"{value:.2f}" for value in values[:, -1])
            cpu = np.mean(seconds[host, objective])
            row = (host, envs[host], objective, len(seeds), f"{over.mean():.2f} ± {over.std(ddof=1):.2f}", end)
            print("|", " | ".join(map(str, row)), "|", f"{cpu:.0f} |")
        axis.set(title=f"{host}, {envs[host]}", xlabel="steps", ylabel="mean return of 20 episodes")
        axis.legend(title="objective")
    figure.savefig(RESULTS / "curves.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    {"run": run, "report": report}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
