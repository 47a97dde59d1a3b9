"""Runs the SLURM script of docs/studies.md, as it stands there, on two hosts that are apart.

    python benchmarks/slurm_recipe.py

The hosts are Linux namespaces (hosts.py; needs root) with one home, as on a cluster. In the place of SLURM stand two
short programs: `scontrol` names the hosts by their addresses, `srun` starts a command on one of them. The script's
sweep is a toy on CPUs instead of Atari on GPUs. The exit code is 1 unless it finishes with runs on both hosts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts import Network
from script import Parser, run
from two_hosts import GRID, QUIET

DOCUMENT = Path(__file__).parents[1] / "docs" / "studies.md"
SRUN = """\
#!/bin/bash
# Starts a command on the host that -w names, or on the one that --exclude does not.
host={worker}
while [[ $1 == -* ]]; do
    [[ $1 == -w ]] && {{ host=$2; shift; }}
    shift
done
exec nsenter --target="$(cat {pids}/"$host")" --all "$@"
"""
SEEDS = 4


def script() -> str:
    """The documented script with a sweep that this machine can carry out."""
    found = re.search(r"\*\*SLURM\*\*.*?```bash\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    if found is None:
        raise SystemExit(f"{DOCUMENT} has no SLURM script")
    text = found[1].replace("sweep atari100k --seeds 5", f"sweep {' '.join(GRID)} --seeds {SEEDS}")
    text = text.replace("ray start", "ray start --num-cpus=1").replace(" --gpus-per-run 0.25", "")
    # The script itself runs on the first node.
    return text.replace("playvirtual sweep", 'srun -w "$head" playvirtual sweep')


def main() -> int:
    """Prints the output of the script and where the runs were."""
    Parser(__doc__).parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder)) as network:
        head, worker = network.host("head"), network.host("worker")
        tools, pids = Path(folder) / "tools", Path(folder) / "pids"
        tools.mkdir()
        pids.mkdir()
        for host in (head, worker):
            (pids / host.address).write_text(str(host.pid))
        programs = {
            "srun": SRUN.format(worker=worker.address, pids=pids),
            "scontrol": f"#!/bin/sh\nprintf '{head.address}\\n{worker.address}\\n'\n",
            "playvirtual": f'#!/bin/sh\nexec {sys.executable} -m playvirtual "$@"\n',
            "job": script(),
        }
        for name, text in programs.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment = {
            **kept,
            **QUIET,
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(head.home),
            "SCRATCH": folder,
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_NNODES": "2",
            "OMP_NUM_THREADS": "1",
        }
        # Files, not pipes: what the script leaves in the background, which SLURM would end, keeps them open.
        printed, log = Path(folder) / "job.out", Path(folder) / "job.err"
        with printed.open("w") as out, log.open("w") as err:
            code = subprocess.run(["bash", tools / "job"], env=environment, stdout=out, stderr=err).returncode
        shown = ("sweep:", "started", "finished", "failed")
        print("\n".join(line for line in printed.read_text().splitlines() if line.startswith(shown)))
        locks = [lock.read_text().split()[-1] for lock in Path(folder).glob("runs/*/*/*/run.lock")]
        counts = {host.name: locks.count(host.name) for host in (head, worker)}
        print(f"exit code {code}; runs by host: {counts}; {time.monotonic() - began:.0f} s")
        if code:
            print(log.read_text()[-2000:])
        return int(code != 0 or sum(counts.values()) != SEEDS or not all(counts.values()))


if __name__ == "__main__":
    run(main)
