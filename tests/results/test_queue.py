"""The queue of runs: a real one of toys is carried out, packed and found again; the published one is consistent."""

from __future__ import annotations

import io
import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.runs import checkpoint, jsonl
from playvirtual.runs.folder import RunFolder
from playvirtual.study.sweep.grids import Job
from tests.waiting import HANG

RESULTS = Path(__file__).parents[2] / "results"
if not RESULTS.exists():
    pytest.skip("results/ is not here", allow_module_level=True)

OPTIONS = (
    "steps = 60, learning_starts = 40, K = 2, eval_episodes = 2, eval_every = 0, batch_size = 8, checkpoint_every = 50"
)
ENTRY = """
[[entry]]
name = "{name}"
tasks = ["toy/catch"]
method = "{method}"
preset = "paper"
seeds = [{seeds}]
options = {{ {options} }}
status = "{status}"
"""
PACE = """
[[pace]]
tasks = ["toy/catch"]
minutes = { 1 = 4000 }
"""  # 2.4 minutes for a run of 60 steps


def entry(name: str, method: str, seeds: str, status: str = "open") -> str:
    return ENTRY.format(name=name, method=method, seeds=seeds, options=OPTIONS, status=status)


PROGRAM = runpy.run_path(str(RESULTS / "run_queue.py"))
WORK = Path("work") / "abc1234"
CPU = {"device": "cpu"}
COMMON = ["--queue=queue.toml", "--results=results", "--out=work", "--commit=abc1234", "--device=cpu"]


def run_queue(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs results/run_queue.py on the queue in `folder`, with runs on the CPU and finished ones in folder/results."""
    done = subprocess.run(
        [sys.executable, RESULTS / "run_queue.py", *COMMON, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == code, done.stderr
    return done


def started(folder: Path, *words: str) -> list[tuple[str, int]]:
    """(name of the entry, seed) of the runs that would be started, as the same program says in this process."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["run_queue.py", *COMMON, *words, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RESULTS / "run_queue.py"), run_name="__main__")
    assert ended.value.code == 0
    lines = said.getvalue().splitlines()[1:]
    found = [re.match(r"toy/catch  (.+)  seed (\d+): playvirtual train toy/catch ", line) for line in lines]
    return [(match[1], int(match[2])) for match in found if match]


@pytest.mark.slow
def test_as_many_runs_as_fit_are_started_in_the_order_of_the_queue(tmp_path: Path) -> None:
    done = entry("done before", "rl", "1", status="done")
    (tmp_path / "queue.toml").write_text(done + entry("first", "spr", "1, 2") + entry("second", "rl", "3") + PACE)
    first, second = [("first", 1), ("first", 2)], [("second", 3)]
    assert started(tmp_path, "--minutes=2", "--workers=1") == []
    assert started(tmp_path, "--minutes=5", "--workers=1") == first
    assert started(tmp_path, "--minutes=8", "--workers=1") == first + second
    assert started(tmp_path, "--minutes=5", "--workers=2", "--per-gpu=1") == first + second
    twice = entry("first", "spr", "2") + entry("second", "rl", "3") + entry("third", "spr", "1, 2")
    (tmp_path / "queue.toml").write_text(twice + PACE)
    assert started(tmp_path, "--minutes=8", "--workers=1") == [("first", 2), ("second", 3), ("third", 1)]
    quick = PACE.replace("minutes", 'methods = ["spr"]\nminutes').replace("4000", "100")  # 0.06 minutes
    (tmp_path / "queue.toml").write_text(entry("second", "rl", "3") + entry("first", "spr", "1, 2") + PACE + quick)
    assert started(tmp_path, "--minutes=1", "--workers=1") == first


@pytest.mark.slow
def test_finished_runs_are_packed_with_their_provenance_and_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "spr", "1") + entry("second", "rl", "1, 2") + PACE)
    (tmp_path / "results" / "toy").mkdir(parents=True)
    before = '[[group]]\nruns = ["runs/older"]\ncommit = "0000000"\n'
    (tmp_path / "results" / "toy" / "provenance.toml").write_text(before)
    first = run_queue(tmp_path, "--minutes=5", "--workers=1")
    assert "3 runs to do, 2 of them fit into 5 minutes" in first.stdout
    with tarfile.open(tmp_path / "work" / "abc1234.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "results", filter="data")
    runs = sorted((tmp_path / "results" / "toy" / "runs").glob("*/*/seed-*"))
    assert [(run.parent.name.partition("-")[0], run.name) for run in runs] == [("rl", "seed-1"), ("spr", "seed-1")]
    for run in runs:
        logs = {"config.json", "metrics.jsonl", "evaluations.jsonl", "timing.jsonl"}
        assert {file.name for file in run.iterdir()} == logs
    assert len(names) == 9
    groups = tomllib.loads((tmp_path / "results" / "toy" / "provenance.toml").read_text())["group"]
    assert [group["commit"] for group in groups] == ["0000000", "abc1234"]
    assert sorted(groups[1]["runs"]) == [str(run.relative_to(tmp_path / "results" / "toy")) for run in runs]
    assert started(tmp_path, "--minutes=60", "--out=elsewhere") == [("second", 2)]
    assert started(tmp_path, "--minutes=60") == [("second", 2)]


@pytest.mark.slow
def test_runs_that_are_still_going_when_the_minutes_are_over_are_left_to_the_next_call(tmp_path: Path) -> None:
    long = entry("long", "rl", "1").replace("steps = 60", "steps = 20000")
    (tmp_path / "queue.toml").write_text(long + PACE.replace("4000", "0.1"))
    stopped = run_queue(tmp_path, "--minutes=0.05", "--workers=1")
    assert "stopped: toy/catch  long  seed 1; the next call resumes it" in stopped.stderr
    assert "finished run" not in stopped.stdout.splitlines()[-1]
    assert started(tmp_path, "--minutes=0.05", "--workers=1") == [("long", 1)]


@pytest.mark.slow
def test_a_run_that_lacks_its_evaluation_alone_is_exported_and_evaluated_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2") + PACE)
    run_queue(tmp_path, "--minutes=60", "--workers=1")
    _, cut = sorted((tmp_path / WORK / "toy" / "runs" / "toy-catch").glob("*/seed-*"))
    expected = jsonl.lines(cut, "evaluations")
    (cut / "evaluations.jsonl").unlink()  # as if it had been stopped in its evaluation
    planned = PROGRAM["read_queue"](tmp_path / "queue.toml").entries[0].jobs(tmp_path / WORK, CPU)
    group = {"commit": "abc1234", "machine": "this one", "command": "python results/run_queue.py"}
    (trained,) = PROGRAM["export_trained"](planned, tmp_path / WORK, group)
    assert trained.relative_to(tmp_path) == Path("work", "abc1234-trained") / cut.relative_to(tmp_path / WORK)
    assert PROGRAM["export_trained"](planned, tmp_path / WORK, group) == [trained]  # which it does not make again
    shutil.rmtree(trained)
    shutil.copytree(checkpoint.newest(cut), tmp_path / "last")
    shutil.rmtree(checkpoint.newest(cut))  # as if it had been killed while it wrote its last checkpoint
    assert PROGRAM["export_trained"](planned, tmp_path / WORK, group) == []
    shutil.rmtree(checkpoint.newest(cut))  # or its first one
    assert PROGRAM["export_trained"](planned, tmp_path / WORK, group) == []
    shutil.copytree(tmp_path / "last", checkpoint.checkpoint_path(cut, 60))
    assert PROGRAM["export_trained"](planned, tmp_path / WORK, group) == [trained]
    words = ["--evaluate=work/abc1234-trained", "--device=cpu", "--results=results"]
    command = [sys.executable, RESULTS / "run_queue.py", *words]
    for _ in range(2):  # the second time there is nothing to do
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr
    run = tmp_path / "results" / cut.relative_to(tmp_path / WORK)
    assert jsonl.lines(run, "evaluations") == expected
    assert {file.name for file in run.iterdir()} == set(PROGRAM["LOGS"])
    (noted,) = tomllib.loads((tmp_path / "results" / "toy" / "provenance.toml").read_text())["group"]
    assert noted["runs"] == [str(run.relative_to(tmp_path / "results" / "toy"))]
    assert noted["note"] == "the last evaluation was played afterwards, on another machine"


def test_either_runs_are_started_or_evaluations_played(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1") + PACE)
    assert "error: minutes: and evaluate; allowed: one of them" in run_queue(tmp_path, code=1).stderr
    assert "error: evaluate: 'nowhere' is no folder" in run_queue(tmp_path, "--evaluate=nowhere", code=1).stderr


def test_a_run_that_was_stopped_is_planned_with_what_is_left_of_it(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2") + PACE)
    first = PROGRAM["read_queue"](tmp_path / "queue.toml").entries[0].jobs(tmp_path / "work" / "abc1234", CPU)[0]
    first.path.mkdir(parents=True)
    (first.path / "config.json").write_text(json.dumps(to_dict(first.config)))
    (first.path / "timing.jsonl").write_text('{"step": 45, "seconds": 9.0}\n')
    assert started(tmp_path, "--minutes=0.5", "--workers=1") == []
    assert started(tmp_path, "--minutes=1", "--workers=1") == [("first", 1)]  # 0.6 minutes
    (first.path / "timing.jsonl").write_text('{"step": 60, "seconds": 9.0}\n')  # its evaluation is left
    assert started(tmp_path, "--minutes=0.3", "--workers=1") == []
    assert started(tmp_path, "--minutes=0.4", "--workers=1") == [("first", 1)]


def test_minutes_between_two_measured_numbers_of_runs_are_on_the_line_between_theirs(tmp_path: Path) -> None:
    pace = PACE.replace("1 = 4000", "2 = 1000, 4 = 3000")
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1") + pace)
    queue = PROGRAM["read_queue"](tmp_path / "queue.toml")
    job = queue.entries[0].jobs(tmp_path, CPU)[0]
    minutes = [queue.minutes(job, sharing) * 100_000 / 60 for sharing in (1, 2, 3, 4, 8)]
    assert minutes == pytest.approx([1000, 1000, 2000, 3000, 6000])


@pytest.mark.slow
def test_every_run_is_recorded_with_the_call_that_finished_it(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2") + PACE)
    run_queue(tmp_path, "--minutes=3", "--workers=1")
    run_queue(tmp_path, "--minutes=4", "--workers=1", "--per-gpu=1")
    with tarfile.open(tmp_path / "work" / "abc1234.tar.gz") as archive:
        archive.extractall(tmp_path / "results", filter="data")
    assert time.time() - (tmp_path / "results" / "toy" / "provenance.toml").stat().st_mtime < 600  # tar warns of 1970
    groups = tomllib.loads((tmp_path / "results" / "toy" / "provenance.toml").read_text())["group"]
    command = "python results/run_queue.py --minutes {} --workers 1 --device cpu"
    assert [group["command"] for group in groups] == [command.format("3 --per-gpu 6"), command.format("4 --per-gpu 1")]
    assert [[Path(run).name for run in group["runs"]] for group in groups] == [["seed-1"], ["seed-2"]]
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2, 3") + PACE)
    run_queue(tmp_path, "--minutes=5", "--workers=1")  # the first two are published now
    with tarfile.open(tmp_path / "work" / "abc1234.tar.gz") as archive:
        member = archive.extractfile("toy/provenance.toml")
        assert member is not None
        groups = tomllib.loads(member.read().decode())["group"]
    assert [[Path(run).name for run in group["runs"]] for group in groups] == [["seed-1"], ["seed-2"], ["seed-3"]]


@pytest.mark.slow
def test_a_run_that_cannot_be_read_or_fails_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2, 3") + PACE)
    broken, failing, last = PROGRAM["read_queue"](tmp_path / "queue.toml").entries[0].jobs(tmp_path / WORK, CPU)
    broken.path.mkdir(parents=True)
    (broken.path / "config.json").write_text("{")
    (failing.path).mkdir(parents=True)
    (failing.path / "checkpoints").write_text("no folder")
    done = run_queue(tmp_path, "--minutes=8", "--workers=1", code=1)
    assert done.stdout.startswith("2 runs to do, 2 of them fit into 8 minutes\n")
    assert "unreadable: " in done.stderr
    assert "seed-1: run: " in done.stderr
    assert "remove it to run it anew" in done.stderr
    assert "seed-2: " in done.stderr
    assert done.stdout.splitlines()[-1] == "1 finished run: work/abc1234.tar.gz"
    with tarfile.open(tmp_path / "work" / "abc1234.tar.gz") as archive:
        runs = {str(Path(name).parent) for name in archive.getnames()} - {"toy"}
    assert runs == {str(last.path.relative_to(tmp_path / WORK))}


def test_a_run_that_cannot_be_read_is_not_planned_and_is_named(tmp_path: Path) -> None:
    """It took the minutes of another one and was listed among those that would be started."""
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1, 2") + PACE)
    broken = PROGRAM["read_queue"](tmp_path / "queue.toml").entries[0].jobs(tmp_path / WORK, CPU)[0]
    broken.path.mkdir(parents=True)
    (broken.path / "config.json").write_text("{")
    with redirect_stderr(said := io.StringIO()):
        assert started(tmp_path, "--minutes=3", "--workers=1") == [("first", 2)]
    assert said.getvalue().startswith("unreadable: work/abc1234/")
    assert said.getvalue().endswith("; remove it to run it anew\n")


def test_an_archive_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(entry("first", "rl", "1") + PACE)
    run = PROGRAM["read_queue"](tmp_path / "queue.toml").entries[0].jobs(tmp_path / WORK, CPU)[0].path
    run.mkdir(parents=True)
    for name in PROGRAM["LOGS"]:
        (run / name).write_text("{}\n")
    PROGRAM["note"]([run], tmp_path / WORK, {"commit": "abc1234"})
    archive = PROGRAM["pack"]([run], tmp_path / WORK, tmp_path)
    before = archive.read_bytes()
    (run / "timing.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        PROGRAM["pack"]([run], tmp_path / WORK, tmp_path)
    assert archive.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[entry]", "error: queue: 'queue.toml' is not TOML: "),
        ("entry = []", "error: queue: 'queue.toml' has no 'pace'; allowed: as in results/queue.toml"),
        ('[[entry]]\nname = "first"\nseed = [1]\n' + PACE, "error: queue: 'queue.toml': "),
    ],
)
def test_a_queue_that_is_none_is_refused_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(text)
    done = run_queue(tmp_path, "--minutes=1", "--dry-run", code=1)
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_queue_that_a_signal_stopped_says_so_by_its_exit_code(tmp_path: Path) -> None:
    long = entry("long", "rl", "1").replace("steps = 60", "steps = 20000")
    (tmp_path / "queue.toml").write_text(long + PACE.replace("4000", "0.1"))
    words = [sys.executable, RESULTS / "run_queue.py", *COMMON, "--minutes=60", "--workers=1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("started" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "stopped: toy/catch  long  seed 1; the next call resumes it" in errors


def test_a_signal_while_the_engine_ends_its_processes_ends_nothing_else() -> None:
    """The minutes may be over just when the last run has ended."""
    code = f"""
import runpy, time
class Slow:
    def stop(self):
        time.sleep(1.0)
print(runpy.run_path({str(RESULTS / "run_queue.py")!r})["carry_out"]([], Slow(), 0.2 / 60))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0"), done.stderr


@pytest.mark.slow
def test_the_commit_is_the_newest_that_changed_the_code(tmp_path: Path) -> None:
    """So the runs that were stopped are resumed after the finished ones have been added and committed."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run_queue.py").write_text((RESULTS / "run_queue.py").read_text())
    (tmp_path / "src").mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]

    def commit(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "one"], check=True)
        words = [*git, "rev-parse", "--short", "HEAD"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    program = runpy.run_path(str(tmp_path / "results" / "run_queue.py"))
    code = commit("src/code.py", "1")
    (tmp_path / "results" / "provenance.toml").write_text("new")
    assert program["_commit"]() == code
    commit("results/provenance.toml", "newer")
    assert program["_commit"]() == code
    (tmp_path / "src" / "code.py").write_text("2")
    assert program["_commit"]() == f"{code}-changed"
    assert program["_commit"]() != (newer := commit("src/code.py", "2"))
    assert program["_commit"]() == newer


def test_no_published_run_took_much_longer_than_the_queue_expects() -> None:
    queue, checked = PROGRAM["read_queue"](RESULTS / "queue.toml"), 0
    for file in RESULTS.glob("*/provenance.toml"):
        for group in tomllib.loads(file.read_text())["group"]:
            alone = re.search(r"(\d+) runs sharing a GPU$", group.get("machine", ""))
            for run in (path for pattern in group["runs"] for path in file.parent.glob(pattern) if alone):
                config = build(**{name: RunFolder(run).record()[name] for name in ("task", "method", "preset", "seed")})
                expected = queue.minutes(Job("", config, {}, RESULTS / "none"), int(alone[1])) if alone else 0.0
                assert expected > 0.9 * jsonl.last(run, "timing")["seconds"] / 60, run
                checked += 1
    assert checked > 20


def test_the_entries_of_the_queue_are_marked_as_what_they_are() -> None:
    queue = tomllib.loads((RESULTS / "queue.toml").read_text())
    paced = {task for pace in queue["pace"] for task in pace["tasks"]}
    names = [entry["name"] for entry in queue["entry"]]
    assert len(names) == len(set(names))
    for entry in queue["entry"]:
        assert set(entry["tasks"]) <= paced
        assert entry["status"] in ("open", "done")
        assert len(entry.get("runs", ())) == (len(entry["tasks"]) * len(entry["seeds"]) * (entry["status"] == "done"))
        assert all((RESULTS / run / "evaluations.jsonl").exists() for run in entry.get("runs", ()))
