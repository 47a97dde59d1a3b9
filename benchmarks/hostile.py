"""Feeds bad input to every command and every file that is read, and counts how they end.

    python benchmarks/hostile.py --cases 2000 --seed 1
    python benchmarks/hostile.py --cases 2000 --seed 1 --src OTHER_CHECKOUT/src     the same cases, another version
    python benchmarks/hostile.py --seed 1 --only 137 --keep /tmp/case               one case, its folder kept

Every case is a command over valid input with one or two parts made bad: bytes, types, sizes, nesting, encodings,
permissions, special files, forged content with right checksums, names, flags, environments. It must end in time with
exit code 0, 1 or 2, without a traceback, with one line `playvirtual: error: …` unless the code is 0, and must change
nothing that it should not: no file outside, no run folder that is only read, no line of a log without a copy. Commands
run in forks of one process that has everything imported.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import hostile_mutations as mutations
from script import Parser, run, whole

TIME_LIMIT = 30.0  # seconds of one case
MEMORY_LIMIT = 3 * 2**30  # bytes of one case: more than that would be killed on a small machine

SMALL = ["--steps=40", "--learning-starts=20", "--K=2", "--eval-episodes=2", "--eval-every=20", "--log-every=10"]
SMALL += ["--checkpoint-every=10", "--hidden=16", "--channels=4", "--batch-size=4", "--capacity=60", "--device=cpu"]
REACH = [*SMALL, "--M=1", "--auxiliary-batch-size=4", "--kernel-sizes=3", "--strides=2", "--image-size=12"]
GYM = [*SMALL, "--M=1", "--kernel-sizes=3", "--strides=1", "--image-size=10", "--threads=1"]

# Reads commands and answers with the process number and the exit code of each.
SERVER = """
import contextlib, ctypes, gc, json, os, runpy, sys, traceback
import torch._dynamo, matplotlib.pyplot, gymnasium, safetensors.torch, rich.progress
import playvirtual.api, playvirtual.cli.main, playvirtual.study.report.report, playvirtual.study.sweep.plan
import playvirtual.study.probes.probe, playvirtual.study.engines.local, playvirtual.training.display.video
import playvirtual.agents.rainbow, playvirtual.agents.sac, playvirtual.envs.families.toy, playvirtual.envs.families.gym

def end_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL

def become(words, cwd, out, err, bound):
    end_with_parent()
    os.setsid()
    os.chdir(cwd)
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    if bound:  # permissions bind root too once it has no capabilities
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capset(ctypes.byref(header), ctypes.byref(none))
    sys.argv = ["playvirtual", *words]
    sys.path[0] = cwd
    try:
        runpy.run_module("playvirtual", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # taking the interpreter down would take longer than most commands

end_with_parent()
# What commands do first, once and here: it is the same for all.
warm_up = ["list tasks", "evaluate nowhere", "train toy/catch --K=-3", "train toy/reach --K=-3", "train gym/x:y --K=-3"]
with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
    for words in [*warm_up, "sweep toy --dry-run --seeds=1 --out nowhere"]:
        playvirtual.cli.main.main(words.split())
gc.collect()
gc.freeze()

while line := sys.stdin.readline():
    if not (child := os.fork()):
        become(**json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ended(NamedTuple):
    """How a command ended: its exit code, or why it was killed."""

    code: int
    killed: str  # "", "time" or "memory"
    out: str
    err: str


class Server:
    """Runs commands of the version in `source` in forks of one process."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            cwd=folder,
        )

    def run(self, words: list[str], cwd: Path, *, bound: bool = False, seconds: float = TIME_LIMIT) -> Ended:
        """Runs `playvirtual WORDS` and waits for it, at most so long; `bound`: by permissions, also as root."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = self._folder / f"out-{id(self)}", self._folder / f"err-{id(self)}"
        out.write_bytes(b"")
        err.write_bytes(b"")
        command = {"words": words, "cwd": str(cwd), "out": str(out), "err": str(err), "bound": bound}
        self._process.stdin.write(json.dumps(command) + "\n")
        child = int(self._process.stdout.readline())
        killed, deadline = "", time.monotonic() + seconds
        while not select.select([self._process.stdout], [], [], 0.05)[0]:
            if time.monotonic() > deadline:
                killed = "time"
            elif resident(child) > MEMORY_LIMIT:
                killed = "memory"
            if killed:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.killpg(child, signal.SIGKILL)
                break
        code = int(self._process.stdout.readline())
        return Ended(code, killed, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def resident(process: int) -> int:
    """The bytes of memory that a process has."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def make_originals(server: Server, folder: Path) -> None:
    """The valid input that the cases spoil, made by the version under test."""
    (folder / "foreign.py").write_text(mutations.FOREIGN)
    (folder / "grid.toml").write_text(mutations.GRID)
    commands = [
        ["train", "toy/catch", *SMALL, "--run-dir", "catch"],
        ["train", "toy/reach", *REACH, "--run-dir", "reach"],
        ["train", "toy/catch", *SMALL, "--method=rl", "--run-dir", "rl"],
        ["train", "gym/foreign:Good-v0", *GYM, "--run-dir", "gym"],
        ["export", "catch", "--out", "export"],
        ["probe", "catch", "complexity"],
        ["train", "toy/catch", *SMALL, "--run-dir", "sweep/toy-catch/playvirtual/seed-1", "--seed=1"],
    ]
    for words in commands:
        ended = server.run([*words, *(["--quiet"] if words[0] == "train" else [])], folder, seconds=300)
        if ended.code:
            raise SystemExit(f"playvirtual {' '.join(words)}: {ended.code}\n{ended.err}")
    for begun in ("catch", "reach", "gym"):  # runs that can be resumed: the same ones with more steps
        shutil.copytree(folder / begun, folder / f"begun-{begun}")
        config = folder / f"begun-{begun}" / "config.json"
        config.write_text(config.read_text().replace('"steps": 40,', '"steps": 60,'))


@dataclass
class Case:
    """One command, and what it may change."""

    words: list[str]
    about: str  # what was made bad, for the person who reads the tally
    writes: tuple[str, ...] = ()  # paths below the case's folder that may be new or changed, with all below them
    bound: bool = False  # by permissions, as users other than root are
    logs: Path | None = None  # the run folder whose log lines must all stay, or have a copy
    left_if_failed: tuple[str, ...] = ()  # paths that must not be there if the command fails


@dataclass
class Outcome:
    """What is wrong with how a case ended; nothing if `kind` is "fine"."""

    number: int
    kind: str  # "fine", "traceback", "hang", "loss" or "rough"
    case: Case
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 100 else word[:100] + "…" for word in self.case.words)
        return f"{self.number}: {self.kind}: {words!r}; {self.case.about!r}: {self.detail!r}"


@dataclass
class Tally:
    """The outcomes of all cases."""

    outcomes: list[Outcome] = field(default_factory=list)

    def __str__(self) -> str:
        counts = Counter(outcome.kind for outcome in self.outcomes)
        kinds = ("traceback", "hang", "loss", "rough", "fine")
        names = {"traceback": "tracebacks", "hang": "hangs", "loss": "losses"}
        return ", ".join(f"{counts[kind]} {names.get(kind, kind)}" for kind in kinds)


def make_case(number: int, seed: int, originals: Path, folder: Path) -> Case:
    """Case number `number` in an empty folder; its seed and number alone decide it."""
    chance = random.Random(f"{seed}/{number}")
    makers: list[tuple[int, Callable[[random.Random, Path, Path], Case]]] = [
        (30, bad_run_file),
        (12, bad_run_folder),
        (8, bad_export),
        (10, bad_report),
        (8, bad_path),
        (14, bad_flag),
        (6, bad_grid),
        (8, bad_environment),
        (4, bad_sweep_folder),
    ]
    weights, makes = zip(*makers, strict=True)
    return chance.choices(makes, weights)[0](chance, originals, folder)


READERS = ("evaluate", "export", "card", "dynamics", "complexity", "resume", "encoder", "report")


def reading(command: str, run: str, of: str, bound: bool) -> Case:
    """A command that reads the run folder `run`, a copy of the original `of`."""
    match command:
        case "evaluate":
            return Case(["evaluate", run, "--episodes=2", "--device=cpu"], "", bound=bound)
        case "export":
            return Case(["export", run, "--out", "new/agent"], "", ("new",), bound, left_if_failed=("new",))
        case "card":
            words = ["export", run, "--out", "new/agent", "--card", "--episodes=2", "--format=torchscript"]
            return Case(words, "", ("new",), bound, left_if_failed=("new",))
        case "dynamics" | "complexity":
            flags = ["--transitions=20", "--device=cpu"] if command == "dynamics" else []
            return Case(["probe", run, command, *flags], "", (f"{run}/probes.json",), bound)
        case "resume":
            return Case(["train", "--resume", run, "--quiet"], "", (run,), bound, logs=Path(run))
        case "encoder":
            small, task = (REACH, "toy/reach") if "reach" in of else (SMALL, "toy/catch")
            words = ["train", task, *small, "--method=rl", "--K=0", "--M=0", "--encoder-from", run, "--quiet"]
            return Case([*words, "--run-dir", "new"], "", ("new",), bound, left_if_failed=())
        case _:
            return Case(["report", ".", "--out", "page"], "", ("page",), bound)


def bad_run_file(chance: random.Random, originals: Path, folder: Path) -> Case:
    """One file of a run folder is bad."""
    command = chance.choice(READERS)
    of = chance.choice(["begun-catch", "begun-reach"] if command == "resume" else ["catch", "reach"])
    run = folder / "run"
    shutil.copytree(originals / of, run)
    if command == "report":
        shutil.copytree(originals / "rl", folder / "good")
    bound = chance.random() < 0.2
    case = reading(command, "run", of, bound)
    case.about = mutations.spoil_a_file(chance, run, folder, permissions=bound)
    return case


def bad_run_folder(chance: random.Random, originals: Path, folder: Path) -> Case:
    """The layout of a run folder is bad: checkpoints missing, unreadable, of another kind."""
    command = chance.choice(READERS)
    of = chance.choice(["begun-catch", "begun-reach"] if command == "resume" else ["catch", "reach"])
    run = folder / "run"
    shutil.copytree(originals / of, run)
    bound = chance.random() < 0.4
    case = reading(command, "run", of, bound)
    case.about = mutations.spoil_a_folder(chance, run, folder, permissions=bound)
    return case


def bad_export(chance: random.Random, originals: Path, folder: Path) -> Case:
    """One file of an export is bad."""
    shutil.copytree(originals / "export", folder / "agent")
    command = chance.choice(("evaluate", "evaluate", "export", "dynamics", "resume"))
    case = reading(command, "agent", "catch", bound=False)
    case.about = mutations.spoil_a_file(chance, folder / "agent", folder, permissions=False)
    case.logs = None
    return case


def bad_report(chance: random.Random, originals: Path, folder: Path) -> Case:
    """A report of a good run and of some that are bad."""
    shutil.copytree(originals / "rl", folder / "good")
    about = []
    for number in range(chance.randint(1, 3)):
        run = folder / f"run-{number}"
        shutil.copytree(originals / chance.choice(["catch", "reach", "gym"]), run)
        spoil = mutations.spoil_a_file if chance.random() < 0.7 else mutations.spoil_a_record
        about.append(spoil(chance, run, folder, permissions=False))
    return Case(["report", ".", "--out", "page"], "; ".join(about), ("page",))


def bad_path(chance: random.Random, originals: Path, folder: Path) -> Case:
    """A path on the command line is bad."""
    bound = chance.random() < 0.4
    path, about = mutations.bad_path(chance, folder)
    shutil.copytree(originals / "catch", folder / "run")
    forms: list[list[str]] = [
        ["evaluate", path],
        ["export", path, "--out", "new"],
        ["export", "run", "--out", path],
        ["export", "run", "--out", path, "--card", "--episodes=2"],
        ["probe", path, "dynamics", "--transitions=20"],
        ["report", path, "--out", "page"],
        ["report", "run", "--out", path],
        ["train", "--resume", path],
        ["train", "toy/catch", *SMALL, "--quiet", "--run-dir", path],
        ["train", "toy/catch", *SMALL, "--quiet", "--resume", "--run-dir", path],
        ["train", "toy/catch", *SMALL, "--quiet", "--method=rl", "--K=0", "--M=0", "--encoder-from", path],
        ["sweep", path, "--suite=toy/catch", "--dry-run"],
        ["sweep", "toy", "--seeds=1", "--dry-run", "--out", path],
        ["bench", "toy/catch", *SMALL, "--json", path],
    ]
    new = [_first_new(folder, path)] if _may_be_filled(folder / path) else []
    return Case(chance.choice(forms), about, ("new", "page", "runs", "free", *new), bound)


def _first_new(folder: Path, path: str) -> str:
    """The topmost folder that a command makes for this path; the path itself if only that is missing."""
    parents = [parent for parent in Path(path).parents if parent != Path(".")]
    return str(next((parent for parent in reversed(parents) if not os.path.lexists(folder / parent)), path))


def _may_be_filled(path: Path) -> bool:
    """Whether a command may write there: nothing is there, or an empty folder, as root sees it."""
    try:
        return not os.path.lexists(path) or (path.is_dir() and not os.listdir(path))
    except (OSError, ValueError):
        return False


def bad_flag(chance: random.Random, originals: Path, folder: Path) -> Case:
    """One or two values on the command line are bad."""
    shutil.copytree(originals / "catch", folder / "run")
    words, about = mutations.bad_flags(chance, SMALL, REACH)
    return Case(words, about, ("new", "page", "runs", "run/probes.json"))


def bad_grid(chance: random.Random, originals: Path, folder: Path) -> Case:
    """The grid of a sweep is bad."""
    file = folder / "grid.toml"
    shutil.copy(originals / "grid.toml", file)
    about = mutations.spoil_grid(chance, file, folder)
    return Case(["sweep", "grid.toml", "--seeds=1", "--dry-run", "--out", "runs"], about)


def bad_sweep_folder(chance: random.Random, originals: Path, folder: Path) -> Case:
    """A run folder that a sweep finds is bad."""
    shutil.copytree(originals / "sweep", folder / "runs")
    run = folder / "runs" / "toy-catch" / "playvirtual" / "seed-1"
    about = mutations.spoil_a_file(chance, run, folder, permissions=False)
    words = ["sweep", "toy", "--seeds=1", "--suite=toy/catch", "--rows=playvirtual", *SMALL, "--dry-run"]
    return Case([*words, "--out", "runs"], about)


def bad_environment(chance: random.Random, originals: Path, folder: Path) -> Case:
    """An environment breaks its contract, or a foreign run folder names a module that must not be imported."""
    (folder / "foreign.py").write_text(mutations.FOREIGN)
    if chance.random() < 0.3:
        shutil.copytree(originals / chance.choice(["gym", "begun-gym"]), folder / "run")
        config = folder / "run" / "config.json"
        config.write_text(config.read_text().replace("gym/foreign:Good-v0", "gym/evil:Good-v0"))
        (folder / "evil.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\n{mutations.FOREIGN}")
        command = chance.choice(("evaluate", "dynamics", "complexity", "resume", "export", "report"))
        case = reading(command, "run", "gym", bound=False)
        case.about = f"{command} of a run folder whose task names a module"
        return case
    name = chance.choice(mutations.FOREIGN_NAMES)
    words = ["train", f"gym/foreign:{name}-v0", *GYM, "--quiet", "--run-dir", "new"]
    if name == "Endless":  # one evaluation, which would never end
        words += ["--eval-every=0", "--eval-episodes=1"]
    return Case(words, f"environment {name}", ("new",))


Snapshot = dict[str, tuple[Any, ...]]


def snapshot(folder: Path) -> Snapshot:
    """Everything below a folder: kind, and content or target."""
    found: Snapshot = {}
    for where, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(where, name)
            status = path.lstat()
            content: Any = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes() if status.st_size < 2**22 else status.st_size
            found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), content)
    return found


IGNORED = ("__pycache__", "run.lock")


def changed(before: Snapshot, after: Snapshot, writes: tuple[str, ...]) -> list[str]:
    """The paths that are new, gone or different and are not among `writes` or below them."""
    paths = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return sorted(
        path
        for path in paths
        if not any(path == allowed or path.startswith(f"{allowed}/") for allowed in writes)
        and not any(part in IGNORED for part in Path(path).parts)
    )


def lost_lines(before: Snapshot, after: Snapshot, run: Path) -> list[str]:
    """The logs of a run folder of which a complete line is neither there any more nor in a copy beside it.

    timing.jsonl is left out: its lines after a checkpoint are written again with other times.
    """
    lost = []
    for name in ("metrics", "evaluations"):
        file = f"{run}/{name}.jsonl"
        data = before.get(file, (0, None))[1]
        if not isinstance(data, bytes):
            continue
        copies = [content for path, (_, content) in after.items() if path.startswith(file)]
        kept = b"".join(content for content in copies if isinstance(content, bytes))
        if not all(line in kept for line in data.splitlines(keepends=True) if line.strip()):
            lost.append(file)
    return lost


def judge(number: int, case: Case, ended: Ended, before: Snapshot, after: Snapshot) -> Outcome:
    """What is wrong with how a case ended."""
    if "Traceback (most recent call last)" in ended.err:
        return Outcome(number, "traceback", case, ended.err.strip().splitlines()[-1][:300])
    if ended.killed:
        return Outcome(number, "hang", case, f"killed: {ended.killed}")
    writes = () if ended.code == 2 and case.logs is not None else case.writes
    if "executed" in after:
        return Outcome(number, "loss", case, "a module that a run folder names was executed")
    if bad := changed(before, after, writes):
        return Outcome(number, "loss", case, f"changed: {', '.join(bad[:5])}")
    if case.logs is not None and (bad := lost_lines(before, after, case.logs)):
        return Outcome(number, "loss", case, f"lines lost: {', '.join(bad)}")
    errors = [line for line in ended.err.splitlines() if line.startswith("playvirtual: error: ")]
    stray = [line for line in ended.err.splitlines() if not line.startswith("playvirtual: ")]
    left = [path for path in case.left_if_failed if ended.code and path in after]
    if ended.code not in (0, 1, 2) or left or stray or len(errors) != (ended.code != 0):
        what = f"code {ended.code}, {len(errors)} error lines, left: {left}, {stray[:1]}"
        return Outcome(number, "rough", case, what)
    return Outcome(number, "fine", case, errors[0] if errors else "")


def try_case(
    number: int, seed: int, server: Server, originals: Path, folder: Path, seconds: float = TIME_LIMIT
) -> Outcome:
    """Makes one case in `folder`, runs it for at most so long, and judges it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    case = make_case(number, seed, originals, folder)
    before = snapshot(folder)
    began = time.monotonic()
    ended = server.run(case.words, folder, bound=case.bound, seconds=seconds)
    outcome = judge(number, case, ended, before, snapshot(folder))
    outcome.seconds = time.monotonic() - began
    return outcome


def try_cases(numbers: list[int], seed: int, source: Path, folder: Path, jobs: int) -> Tally:
    """Tries these cases on the version in `source`, `jobs` at a time; `folder` is a scratch folder."""
    originals = folder / "originals"
    originals.mkdir()
    servers = [Server(source, folder) for _ in range(jobs)]
    tally = Tally()
    try:
        make_originals(servers[0], originals)

        def work(at: int) -> None:
            for number in numbers[at::jobs]:
                outcome = try_case(number, seed, servers[at], originals, folder / f"case-{at}")
                tally.outcomes.append(outcome)
                if outcome.kind != "fine":
                    print(outcome, flush=True)

        with ThreadPoolExecutor(jobs) as threads:
            list(threads.map(work, range(jobs)))
    finally:
        for server in servers:
            server.close()
    return tally


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--cases", type=whole(1), default=500, metavar="N", help="how many (default: 500)")
    parser.add_argument("--seed", type=whole(0), default=1, metavar="N", help="decides all cases (default: 1)")
    parser.add_argument("--only", type=whole(0), metavar="NUMBER", help="this case alone")
    parser.add_argument("--jobs", type=whole(1), default=2, metavar="N", help="cases at a time (default: 2)")
    own = Path(__file__).parents[1] / "src"
    parser.add_argument("--src", type=Path, default=own, metavar="DIR", help="the version: a folder with playvirtual/")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for the cases, which stays")
    options = parser.parse_args()
    if not (options.src / "playvirtual").is_dir():
        parser.error(f"src: {str(options.src)!r} is not allowed; allowed: a folder that holds playvirtual/")
    numbers = list(range(options.cases)) if options.only is None else [options.only]
    folder = options.keep or Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        jobs = min(options.jobs, len(numbers))
        tally = try_cases(numbers, options.seed, options.src.resolve(), folder, jobs)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    slowest = max(tally.outcomes, key=lambda outcome: outcome.seconds)
    print(f"{len(numbers)} cases of seed {options.seed}, {options.src}, in {time.monotonic() - began:.0f} s: {tally}")
    print(f"slowest: case {slowest.number}, {slowest.seconds:.1f} s, {slowest.case.about!r}")
    return int(any(outcome.kind != "fine" for outcome in tally.outcomes))


if __name__ == "__main__":
    run(main)
