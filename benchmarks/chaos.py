"""Kills runs at random moments, resumes them until they finish, and compares them with uninterrupted runs.

    python benchmarks/chaos.py --kills 100 --seed 1
    python benchmarks/chaos.py --kills 30 --tasks atari/pong --device cuda

Every run is started by the same command with --resume, killed, and started again until it finishes; then the next one
begins, until there were as many kills. Half of the kills come at a random moment: while the process loads, trains,
saves or evaluates, by SIGKILL or SIGTERM. The other half come inside the writing of a checkpoint, on a disk that ends
the process at a random operation, in the middle of a file, or that is so slow that a SIGKILL from outside falls there
(faulty_disk.py). Besides, some starts meet a disk that is full or broken in the middle of a checkpoint, which must be
said in one line. In the end metrics.jsonl, evaluations.jsonl and what the last checkpoint holds must equal those of an
uninterrupted run, byte for byte. On a GPU, where some sums have no fixed order, the differences are shown instead.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from script import DEVICES, Parser, one_of, run, seconds, whole

from playvirtual.device import resolve_device
from playvirtual.runs import checkpoint

SMALL_SAC = (
    *("--hidden", "16", "--channels", "8,8", "--kernel-sizes", "3,3", "--strides", "2,2", "--K", "2", "--M", "2"),
    *("--batch-size", "8", "--auxiliary-batch-size", "4"),
)
RUNS = {
    "toy/catch": ["--steps", "1600", "--eval-every", "400", "--checkpoint-every", "50", "--log-every", "20"],
    "minatar/breakout": [
        *("--steps", "1600", "--learning-starts", "300", "--eval-every", "400", "--eval-episodes", "10"),
        *("--checkpoint-every", "50", "--log-every", "20", "--capacity", "1000"),
    ],
    "dmc/cartpole-swingup": [
        *("--steps", "960", "--learning-starts", "20", "--eval-every", "0", "--eval-episodes", "1"),
        *("--checkpoint-every", "10", "--log-every", "5", "--threads", "1", *SMALL_SAC),
    ],
    "atari/pong": [
        *("--steps", "600", "--learning-starts", "100", "--eval-every", "0", "--eval-episodes", "1"),
        *("--checkpoint-every", "60", "--log-every", "20", "--threads", "1", "--max-episode-frames", "400"),
    ],
}
DEFAULT = ("toy/catch", "minatar/breakout", "dmc/cartpole-swingup")
SHARES = {"dmc/cartpole-swingup": 0.4}  # of the kills, beside 1 for each other task: it renders 60 frames a second
FILES = ("metrics.jsonl", "evaluations.jsonl")
LOCK = "run.lock"
DISK = Path(__file__).with_name("faulty_disk.py")
OPERATIONS = 45  # of two checkpoints, about: among them is the one at which a disk kills
SLOW = "40"  # milliseconds of an operation of the slow disk
FAILING = 0.1  # of the starts meet a disk that is full or broken
HANG = 600.0


@dataclass
class Tally:
    """What happened to the runs of one task."""

    signals: dict[str, int] = field(default_factory=lambda: {"SIGKILL": 0, "SIGTERM": 0})  # at random moments
    inside: dict[str, int] = field(default_factory=lambda: {"kill": 0, "torn": 0, "slow": 0})  # checkpoint writing
    failures: int = 0  # starts that ended because the disk was full or broken
    starts: int = 0
    trained: int = 0  # kills after new metrics had been written
    finished: int = 0  # runs

    @property
    def kills(self) -> int:
        return sum(self.signals.values()) + sum(self.inside.values())

    def __str__(self) -> str:
        moments = ", ".join(f"{count} x {name}" for name, count in self.signals.items())
        disk = ", ".join(f"{count} x {name}" for name, count in self.inside.items())
        return (
            f"{self.kills} kills: {moments} at random moments; inside checkpoint writing {disk}; at least "
            f"{self.trained} after new metrics; {self.failures} full or broken disks; {self.starts} starts"
        )


def command(task: str, options: list[str], run: Path, device: str = "cpu") -> list[str]:
    """The command line, which is the same at every start."""
    words = [sys.executable, "-m", "playvirtual", "train", task, *options, "--device", device, "--quiet"]
    return [*words, "--run-dir", str(run), "--resume"]


def start(words: list[str], fault: tuple[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts the command, on a faulty disk where one is given."""
    if fault is not None:
        words = [sys.executable, str(DISK), *fault, *words[words.index("train") :]]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def harass(words: list[str], kills: int, longest: float, chance: random.Random, tally: Tally) -> bool:
    """Starts the command again and again until it has finished, or `tally` has `kills`; returns whether it finished."""
    run = Path(words[words.index("--run-dir") + 1])
    while tally.kills < kills:
        before, newest = _content(run / "metrics.jsonl"), _newest(run)
        tally.starts += 1
        if chance.random() < FAILING:
            ended = _on_failing_disk(words, chance, tally)
        elif sum(tally.inside.values()) <= sum(tally.signals.values()):
            ended = _inside_checkpoint(words, run, chance, tally)
        else:
            ended = _at_random_moment(words, run, longest, chance, tally)
        tally.trained += not ended and not before.startswith(_content(run / "metrics.jsonl"))
        if _newest(run) < newest:
            raise SystemExit(f"{run}: the checkpoint {newest} is gone")
        if ended:
            return True
    return False


def finish(words: list[str]) -> None:
    """Runs the command to its end."""
    process = start(words)
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"run ended with code {process.returncode}:\n{said}")


def _at_random_moment(words: list[str], run: Path, longest: float, chance: random.Random, tally: Tally) -> bool:
    """One kill in four comes within four seconds of the start, the others so long after the folder was locked."""
    process = start(words)
    early = chance.random() < 0.25
    if not early:
        _wait_for_lock(process, run)
    name = chance.choice(["SIGKILL", "SIGKILL", "SIGTERM"])
    killed, said = _wait_and_kill(process, chance.uniform(0.0, 4.0 if early else longest), signal.Signals[name])
    # Before the handlers are installed SIGTERM ends a process with its own code.
    _check_code(process.returncode, (0, -signal.SIGKILL, 128 + signal.SIGTERM, -signal.SIGTERM), said)
    tally.signals[name] += killed
    return process.returncode == 0


def _inside_checkpoint(words: list[str], run: Path, chance: random.Random, tally: Tally) -> bool:
    """Kills at a random operation, or from outside on a slow disk; what is left of the checkpoint shows that it was."""
    way = chance.choice(list(tally.inside))
    if way != "slow":
        process = start(words, (way, str(chance.randint(1, OPERATIONS))))
        _, said = process.communicate(timeout=HANG)
        tally.inside[way] += process.returncode == -signal.SIGKILL
    else:
        process = start(words, (way, SLOW))
        while process.poll() is None and not _being_written(run):
            time.sleep(0.002)
        killed, said = _wait_and_kill(process, chance.uniform(0.0, 0.5), signal.SIGKILL)
        tally.inside[way] += killed and _being_written(run)
        tally.signals["SIGKILL"] += killed and not _being_written(run)
    _check_code(process.returncode, (0, -signal.SIGKILL), said)
    return process.returncode == 0


def _on_failing_disk(words: list[str], chance: random.Random, tally: Tally) -> bool:
    """The run must end with one line that names the folder, and nothing else."""
    way = chance.choice(["full", "broken"])
    process = start(words, (way, str(chance.randint(1, OPERATIONS))))
    _, said = process.communicate(timeout=HANG)
    _check_code(process.returncode, (0, 1), said)
    lines = [line for line in said.splitlines() if "error" in line or "Traceback" in line]
    if process.returncode and not (len(lines) == 1 and lines[0].startswith("playvirtual: error: cannot write ")):
        raise SystemExit(f"a disk that is {way} was said in other words:\n{said}")
    tally.failures += process.returncode
    return process.returncode == 0


def _wait_for_lock(process: subprocess.Popen[str], run: Path) -> None:
    while process.poll() is None and f"process {process.pid} ".encode() not in _content(run / LOCK):
        time.sleep(0.005)


def _wait_and_kill(process: subprocess.Popen[str], wait: float, number: signal.Signals) -> tuple[bool, str]:
    """Whether the process had not ended by itself before, and what it said."""
    try:
        return False, process.communicate(timeout=wait)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        return True, process.communicate(timeout=HANG)[1]


def _check_code(code: int, allowed: tuple[int, ...], said: str) -> None:
    if code not in allowed:
        raise SystemExit(f"run ended with code {code}:\n{said}")


def _being_written(run: Path) -> bool:
    """Whether a checkpoint is being written or removed: its folder has a suffix."""
    return any(path.suffix for path in (run / "checkpoints").glob("step-*"))


def _newest(run: Path) -> str:
    return max((path.name for path in checkpoint.complete(run)), default="")


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def compare(a: Path, b: Path, *, exact: bool = True) -> str:
    """Ends the program unless both runs wrote the same bytes; where `exact` is false, returns how they differ."""
    if not exact:
        return _difference(a, b)
    newest = checkpoint.complete(a)[-1].name
    # state.json has the seconds that the run took, and the manifest its checksum.
    held = [p.name for p in (a / "checkpoints" / newest).iterdir() if p.name not in ("state.json", "manifest.json")]
    for name in (*FILES, *(f"checkpoints/{newest}/{name}" for name in sorted(held))):
        if (a / name).read_bytes() != (b / name).read_bytes():
            raise SystemExit(f"{a / name} and {b / name} differ")
    return "identical"


def _difference(a: Path, b: Path) -> str:
    """The largest difference of a number of metrics.jsonl; ends the program unless lines, steps and names are equal."""
    largest, equal, total = 0.0, 0, 0
    for one, other in zip(*([json.loads(line) for line in (p / FILES[0]).open()] for p in (a, b)), strict=True):
        if one.keys() != other.keys() or one["step"] != other["step"]:
            raise SystemExit(f"{a} and {b} have other lines at step {one['step']}")
        total, equal = total + 1, equal + (one == other)
        for name, value in one.items():
            if isinstance(value, float) and isinstance(other[name], float):
                largest = max(largest, abs(value - other[name]) / max(1.0, abs(value)) if math.isfinite(value) else 0.0)
    return f"{equal} of {total} lines identical, largest difference {largest:.2g} (sums on a GPU have no fixed order)"


def tasks(text: str) -> list[str]:
    """For `type=`: names with commas."""
    return [one_of(*RUNS)(name) for name in text.split(",")]


def quota(kills: int, names: list[str]) -> dict[str, int]:
    """How many kills each task gets; their sum is `kills`."""
    shares = [SHARES.get(name, 1.0) for name in names]
    counts = [round(kills * share / sum(shares)) for share in shares]
    counts[0] += kills - sum(counts)
    return dict(zip(names, counts, strict=True))


def main() -> None:
    """Prints one line per task."""
    parser = Parser(__doc__)
    parser.add_argument("--kills", type=whole(1), default=100, help="in all (default: 100)")
    parser.add_argument(
        "--longest",
        type=seconds(zero=True),
        default=4.0,
        help="seconds of work before a kill at a random moment, at most (default: %(default)s)",
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="of the moments and signals (default: 0)")
    names = ",".join(DEFAULT)
    parser.add_argument("--tasks", type=tasks, default=names, help=f"names with commas (default: {names})")
    parser.add_argument("--device", default="cpu", help=f"{DEVICES} (default: cpu)")
    options = parser.parse_args()
    device = resolve_device(options.device)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    total = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for task, kills in quota(options.kills, options.tasks).items():
            name = Path(folder) / task.replace("/", "-")
            began = time.monotonic()
            finish(command(task, RUNS[task], name / "whole", options.device))
            alone = time.monotonic() - began
            tally, chance = Tally(), random.Random(f"{options.seed} {task}")
            while tally.kills < kills:
                words = command(task, RUNS[task], name / f"killed-{tally.finished + 1}", options.device)
                if not harass(words, kills, options.longest, chance, tally):
                    finish(words)
                    tally.starts += 1
                tally.finished += 1
                result = compare(name / "whole", name / f"killed-{tally.finished}", exact=device.type == "cpu")
                print(f"{task}: run {tally.finished} after {tally.kills} kills: {result}", flush=True)
            lines = [len((name / "whole" / f).read_text().splitlines()) for f in FILES]
            harassed = time.monotonic() - began - alone
            print(
                f"{task}: {tally}; {tally.finished} runs of {lines[0]} lines of metrics and {lines[1]} of evaluations; "
                f"{alone:.0f} s alone, {harassed:.0f} s with kills",
                flush=True,
            )
            _add(total, tally)
    inside = sum(total.inside.values())
    print(f"in all {total.kills} kills, {inside} of them inside checkpoint writing; {total.finished} runs compared")


def _add(total: Tally, tally: Tally) -> None:
    for counts, more in ((total.signals, tally.signals), (total.inside, tally.inside)):
        for name, count in more.items():
            counts[name] += count
    total.finished += tally.finished


if __name__ == "__main__":
    run(main)
