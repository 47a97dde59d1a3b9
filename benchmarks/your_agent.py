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
OBJECTIVES = {"none": ["--plain"], "playvirtual": []}
# Host → the example's command, and the seeds.
HOSTS = {
    "sb3-dqn": (["sb3_playvirtual.py", "dqn", "--steps", "3000", "--every", "250"], (0, 1, 2)),
    "sb3-sac": (["sb3_playvirtual.py", "sac", "--steps", "2000", "--every", "250"], (0, 1, 2)),
    "sb3-sac-relu": (["sb3_playvirtual.py", "sac", "--relu", "--steps", "2000", "--every", "250"], (3, 4, 5)),
    "cleanrl-dqn": (["cleanrl_style_dqn.py", "--steps", "7000", "--every", "500"], (0, 1, 2)),
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
    for host, (command, seeds) in HOSTS.items():
        for seed in seeds:
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


def read_curves() -> dict[tuple[str, str], np.ndarray]:
    """(host, objective) → (seeds, evaluations, 2): steps and mean returns of every run, in the order of the seeds."""
    curves: dict[tuple[str, str], dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(RETURNS):
        curves[row["host"], row["objective"]][int(row["seed"])].append((int(row["step"]), float(row["mean_return"])))
    return {key: np.array([curve for _, curve in sorted(seeds.items())]) for key, seeds in curves.items()}


def table() -> list[str]:
    """The mean return over a run's evaluations (mean and standard deviation over seeds), and that of its last three."""
    envs, seconds = {row["host"]: row["env"] for row in rows(RETURNS)}, defaultdict(list)
    for row in rows(TIMES):
        seconds[row["host"], row["objective"]].append(float(row["cpu_seconds"]))
    lines = ["| host | environment | objective | seeds | whole run | end of the run | end, each seed | CPU s |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (host, objective), curves in sorted(read_curves().items(), key=lambda item: [*HOSTS].index(item[0][0])):
        over, end = curves[:, :, 1].mean(1), curves[:, -3:, 1].mean(1)
        numbers = [f"{found.mean():.2f} ± {found.std(ddof=1):.2f}" for found in (over, end)]
        cells = (host, envs[host], objective, len(curves), *numbers, ", ".join(f"{score:.2f}" for score in end))
        lines.append(f"| {' | '.join(map(str, cells))} | {np.mean(seconds[host, objective]):.0f} |")
    return lines


def report() -> None:
    """Prints the table and draws every run's curve with their mean."""
    print("\n".join(table()))
    curves, envs = read_curves(), {row["host"]: row["env"] for row in rows(RETURNS)}
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    for host, axis in zip(HOSTS, axes.flat, strict=True):
        for objective, color in zip(OBJECTIVES, ("tab:gray", "tab:blue"), strict=True):
            runs = curves[host, objective]
            for steps, returns in runs.transpose(0, 2, 1):
                axis.plot(steps, returns, color=color, alpha=0.3, linewidth=1)
            axis.plot(runs[0, :, 0], runs[:, :, 1].mean(0), color=color, label=objective)
        axis.set(title=f"{host}, {envs[host]}", xlabel="steps", ylabel="mean return of 20 episodes")
        axis.legend(title="objective")
    figure.savefig(RESULTS / "curves.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    {"run": run, "report": report}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
