"""Sweeps on a Ray cluster of two hosts that are really apart, loses one of them in the middle, and compares.

    python benchmarks/two_hosts.py --loss kill      # all its processes are killed; their connections are closed
    python benchmarks/two_hosts.py --loss power     # it is gone at once, without a word
    python benchmarks/two_hosts.py --loss unplug    # it keeps running, but nothing reaches it and it reaches nobody

The hosts are Linux namespaces with networks and addresses of their own and one shared folder (hosts.py; needs root).
The commands are those of docs/studies.md. What is shown first: that a missing, a wrong and a disabled token are said in
one line. Then the sweep must finish, and metrics.jsonl and evaluations.jsonl must equal those of a sweep on this
machine alone, byte for byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hosts import Host, Network, wait_until
from script import Parser, one_of, run, whole

SCRIPTS = Path(sys.executable).parent
RAY, PLAYVIRTUAL = str(SCRIPTS / "ray"), (sys.executable, "-m", "playvirtual")
PORT = 6379
GRID = (
    *("toy", "--suite", "toy/catch", "--rows", "rl", "--steps", "1500", "--learning-starts", "100", "--K", "2"),
    *("--eval-episodes", "4", "--eval-every", "100", "--log-every", "50", "--checkpoint-every", "100"),
    *("--device", "cpu"),
)
FILES = ("metrics.jsonl", "evaluations.jsonl")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
HANG = 600.0  # seconds after which a sweep counts as hanging


def ray_command(host: Host, *words: str, more: dict[str, str] | None = None) -> str:
    """Runs `ray …` there; ends the program if that fails."""
    code, said = host.run(RAY, *words, more={**QUIET, **(more or {})})
    if code:
        raise SystemExit(f"{host.name}: ray {' '.join(words)} ended with code {code}:\n{said}")
    return said


def copy_token(source: Host, target: Host) -> None:
    """What `scp` would do with ~/.ray/auth_token."""
    (target.home / ".ray").mkdir()
    (target.home / ".ray" / "auth_token").write_bytes((source.home / ".ray" / "auth_token").read_bytes())


def sweep_words(out: Path, seeds: int, *where: str) -> tuple[str, ...]:
    """The command line of the sweep."""
    return (*PLAYVIRTUAL, "sweep", *GRID, "--seeds", str(seeds), "--out", str(out), *where)


def refusals(head: Host, address: str, out: Path) -> Iterator[str]:
    """What the sweep says without the token, with a wrong one, and where tokens are disabled: one line each."""
    words = sweep_words(out, 1, "--engine", "ray", "--address", address)
    nobody = {"HOME": str(head.home / "nobody")}
    for name, more in (
        ("no token", nobody),
        ("a wrong token", {**nobody, "RAY_AUTH_TOKEN": "wrong" * 8}),
        ("RAY_AUTH_MODE=disabled", {"RAY_AUTH_MODE": "disabled"}),
    ):
        began = time.monotonic()
        code, said = head.run(*words, more={**QUIET, **more})
        if code != 2 or len(said.splitlines()) != 1:
            raise SystemExit(f"{name}: exit code {code} instead of 2, or more than a line:\n{said}")
        yield f"{name} ({time.monotonic() - began:.1f} s): {said.strip()}"


def runs_on(host: Host, out: Path) -> list[Path]:
    """The run folders whose lock names a process of this host and that have reached their first evaluation."""
    locks = [lock for lock in out.glob("*/*/*/run.lock") if lock.read_text().endswith(f" on {host.name}\n")]
    return [lock.parent for lock in locks if (lock.parent / "evaluations.jsonl").exists()]


def differing(one: Path, other: Path) -> list[str]:
    """The files of the runs below the two folders that do not have the same bytes."""
    names = sorted(path.relative_to(one) for name in FILES for path in one.glob(f"*/*/*/{name}"))
    if not names:
        raise SystemExit(f"no run below {one}")
    return [str(n) for n in names if not (other / n).exists() or (one / n).read_bytes() != (other / n).read_bytes()]


def main() -> int:
    """Prints what happens, line by line; the exit code is 1 if the sweep failed or its results differ."""
    parser = Parser(__doc__)
    ways = ("kill", "power", "unplug")
    parser.add_argument("--loss", type=one_of(*ways), default="power", help=f"{', '.join(ways)} (default: power)")
    parser.add_argument("--seeds", type=whole(2), default=4, help="runs of the sweep (default: 4)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # as if installed on every host
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as folder, Network(Path(folder)) as network:
        shared = Path(folder) / "shared"
        shared.mkdir()
        subprocess.run(sweep_words(shared / "alone", options.seeds), check=True, stdout=subprocess.DEVNULL)
        say("the same sweep on this machine alone is finished")
        head, worker = network.host("head"), network.host("worker")
        ray_command(head, "get-auth-token", "--generate")
        ray_command(head, "start", "--head", f"--port={PORT}", "--num-cpus=1")
        address = f"{head.address}:{PORT}"
        say(f"head at {address}, which asks for a token")
        for line in refusals(head, address, shared / "refused"):
            say(line)
        copy_token(head, worker)
        ray_command(worker, "start", f"--address={address}", "--num-cpus=1", more={"RAY_AUTH_MODE": "token"})
        say(f"worker at {worker.address} has joined with the head's token")

        out, log = shared / "runs", Path(folder) / "sweep.log"
        words = sweep_words(out, options.seeds, "--engine", "ray", "--address", address)
        with log.open("w") as file:
            sweep = head.start(words, QUIET, stdout=file, stderr=subprocess.STDOUT)
        wait_until(lambda: sweep.poll() is not None or runs_on(worker, out), "the first run on the worker", HANG)
        if sweep.poll() is not None:
            raise SystemExit(f"the sweep ended before the worker had a run:\n{log.read_text()}")
        there = [str(path.relative_to(out)) for path in runs_on(worker, out)]
        if options.loss in ("power", "unplug"):
            network.unplug(worker)
        if options.loss in ("power", "kill"):
            worker.kill()
        say(f"{options.loss}: the worker is lost with {', '.join(there)}")
        waited = time.monotonic()
        code = sweep.wait(HANG)
        say(f"the sweep ended with code {code}, {time.monotonic() - waited:.0f} s after the loss:")
        print(log.read_text(), end="", flush=True)
        different = differing(shared / "alone", out)
        count = len(list(out.glob("*/*/*/config.json")))
        say(f"{count} runs, " + (f"these files differ: {', '.join(different)}" if different else "all byte-equal"))
        return int(bool(code or different))


if __name__ == "__main__":
    run(main)
