"""The local engine's GPUs and its MPS daemon: when it is started, what its runs see, and that it ends.

Scripts that record how they are called stand for NVIDIA's control program and for the runs; the number of GPUs is
a constant.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from playvirtual.config.build import build
from playvirtual.device import GPU_EXPECTED
from playvirtual.errors import InputError
from playvirtual.runs import jsonl
from playvirtual.study.engines import local, mps
from playvirtual.study.engines.local import LocalEngine
from playvirtual.study.sweep.grids import Job
from tests.waiting import HANG, wait_until

CONTROL = """#!/bin/sh
if [ -z "$CUDA_MPS_PIPE_DIRECTORY" ]; then  # the question to the daemon of the default folder
    [ "$(cat)" = get_server_list ] && [ -z "$DEAD" ]; exit
fi
echo "arguments=$* stdin=$(cat) cards=$CUDA_VISIBLE_DEVICES pipe=$CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
test -d "$CUDA_MPS_PIPE_DIRECTORY" || echo "no pipe folder" >> "$CALLS"
test -d "$CUDA_MPS_LOG_DIRECTORY" || echo "no log folder" >> "$CALLS"
[ -z "$BROKEN" ] || { echo "An instance of this daemon is already running"; exit 1; }
"""


RUN = """#!/bin/sh
for word in "$@"; do
    if [ "$previous" = --run-dir ]; then record="$word"; fi
    previous="$word"
done
{ echo "WORDS=$*"; env; } > "$record.partial"
mv "$record.partial" "$record.env"
exec sleep 1000
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the control program records its calls; there are two GPUs, and runs are scripts."""
    program = tmp_path / "bin" / mps.PROGRAM
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    calls = tmp_path / "calls.txt"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    interpreter = tmp_path / "bin" / "python"
    interpreter.write_text(RUN)
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path / "pipes")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return calls


def job(tmp_path: Path, seed: int = 1, device: str = "cpu") -> Job:
    """A run that lasts until it is stopped."""
    config = build("toy/catch", method="rl", seed=seed, device=device)
    return Job("RL", config, {"device": device}, tmp_path / "runs" / f"seed-{seed}")


def environment(job: Job) -> dict[str, str]:
    """The environment variables of a run that was started, and its command line as WORDS."""
    record = job.path.with_name(job.path.name + ".env")
    wait_until(record.exists, f"the start of {job.path}")
    return dict(line.split("=", 1) for line in record.read_text().splitlines() if "=" in line)


def test_runs_that_share_a_gpu_get_a_daemon_that_ends_with_them(tmp_path, control):
    engine = LocalEngine(per_gpu=2)
    assert engine.workers == 4
    assert not control.exists()  # a plan starts nothing
    started = [job(tmp_path, seed) for seed in range(3)]
    for each in started:
        engine.start(each)
    assert engine.running() == started
    children = [environment(each) for each in started]
    [pipe] = {child["CUDA_MPS_PIPE_DIRECTORY"] for child in children}
    assert [child["CUDA_VISIBLE_DEVICES"] for child in children] == ["0", "1", "0"]
    assert [child[GPU_EXPECTED] for child in children] == ["1"] * 3
    assert Path(children[0]["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
    engine.stop()
    assert control.read_text().splitlines() == [
        f"arguments=-d stdin= cards=0,1 pipe={pipe}",
        f"arguments= stdin=get_server_list cards=0,1 pipe={pipe}",
        f"arguments= stdin=quit cards=0,1 pipe={pipe}",
    ]
    assert not Path(pipe).parent.exists()


def log_steps(job: Job, step: int) -> None:
    """The run has logged that it is at `step`."""
    jsonl.append(job.path, "metrics", {"step": step})


def test_a_run_in_its_last_evaluation_makes_room_for_the_next_on_its_gpu(tmp_path, control):
    engine = LocalEngine(per_gpu=1, mps="off")
    first, second, third, fourth = (job(tmp_path, seed) for seed in range(4))
    for each in (first, second):
        assert engine.room()
        engine.start(each)
        environment(each)
        each.path.mkdir()
    log_steps(first, first.config.steps - 1)
    assert not engine.room()
    log_steps(second, second.config.steps)
    assert engine.room()
    engine.start(third)
    assert environment(third)["CUDA_VISIBLE_DEVICES"] == "1"  # where the second one plays its last evaluation
    assert not engine.room()
    third.path.mkdir()
    for each in (first, third):
        log_steps(each, each.config.steps)
    assert engine.room()
    engine.start(fourth)
    assert environment(fourth)["CUDA_VISIBLE_DEVICES"] == "0"
    assert not engine.room()  # however many of them evaluate, no more than twice as many processes as places
    assert engine.running() == [first, second, third, fourth]
    engine.stop()


def test_on_the_cpu_a_run_keeps_its_place_while_it_evaluates(tmp_path, control):
    engine = LocalEngine(1, device="cpu")
    only = job(tmp_path)
    engine.start(only)
    environment(only)
    only.path.mkdir()
    log_steps(only, only.config.steps)
    assert not engine.room()
    engine.stop()


def test_a_daemon_counts_its_gpus_from_0_but_knows_uuids(control):
    daemon = mps.Daemon(["3", "GPU-8f1c"])
    assert [daemon.visible(0), daemon.visible(1)] == ["0", "GPU-8f1c"]
    daemon.stop()
    assert "cards=3,GPU-8f1c" in control.read_text()


@pytest.mark.parametrize(
    "why", ["one run per GPU", "off", "the user's by variable", "the user's by default", "no program"]
)
def test_no_daemon_is_started_where_none_is_wanted_or_one_is_there(tmp_path, control, monkeypatch, why):
    if why == "the user's by variable":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mine")
    if why == "the user's by default":
        (tmp_path / "pipes").mkdir()
        (tmp_path / "pipes" / "control").touch()
    if why == "no program":
        (tmp_path / "bin" / mps.PROGRAM).unlink()
    engine = LocalEngine(per_gpu=1 if why == "one run per GPU" else 2, mps="off" if why == "off" else "auto")
    engine.start(job(tmp_path))
    assert environment(job(tmp_path)).get("CUDA_MPS_PIPE_DIRECTORY") == os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    engine.stop()
    assert not control.exists()


def test_the_files_of_a_dead_daemon_do_not_count(tmp_path, control, monkeypatch):
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes" / "control").touch()
    monkeypatch.setenv("DEAD", "1")
    engine = LocalEngine(per_gpu=2)
    engine.start(job(tmp_path))
    assert "playvirtual-mps" in environment(job(tmp_path))["CUDA_MPS_PIPE_DIRECTORY"]
    engine.stop()
    assert control.read_text().count("arguments=-d") == 1


def test_a_daemon_that_does_not_start_is_one_line_and_the_runs_start_without_it(tmp_path, control, monkeypatch, capsys):
    monkeypatch.setenv("BROKEN", "1")
    engine = LocalEngine(per_gpu=2)
    for seed in range(2):
        engine.start(job(tmp_path, seed))
    assert "CUDA_MPS_PIPE_DIRECTORY" not in environment(job(tmp_path, 1))
    engine.stop()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "MPS did not start (An instance of this daemon is already running)" in said
    assert control.read_text().count("arguments=-d") == 1
    strict = LocalEngine(per_gpu=2, mps="on")
    with pytest.raises(InputError, match="mps: 'on', but nvidia-cuda-mps-control did not start: An instance"):
        strict.start(job(tmp_path))


def test_what_is_not_there_cannot_be_demanded(control, tmp_path):
    (tmp_path / "bin" / mps.PROGRAM).unlink()
    with pytest.raises(InputError, match="mps: 'on' needs the program nvidia-cuda-mps-control"):
        LocalEngine(per_gpu=2, mps="on")
    with pytest.raises(InputError, match="mps: 'onn' is not known; did you mean 'on'"):
        LocalEngine(mps="onn")


SWEEP = """
import sys, torch
from pathlib import Path
from playvirtual.config.build import build
from playvirtual.study.engines.local import LocalEngine
from playvirtual.study.sweep.display import PlainLines
from playvirtual.study.sweep.grids import Job
from playvirtual.study.sweep.sweep import sweep
torch.cuda.device_count = lambda: 1
options = {"steps": 10**8, "device": "cpu"}
job = Job("RL", build("toy/catch", method="rl", **options), options, Path("runs/seed-1"))
result = sweep([job], LocalEngine(per_gpu=2), PlainLines())
sys.exit(128 + result.stopped_by)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_daemon_after_the_runs(tmp_path, control, monkeypatch):
    monkeypatch.undo()  # runs are real ones here
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(control))
    if Path("/tmp/nvidia-mps/control").exists():
        pytest.skip("an MPS daemon runs on this machine")
    process = subprocess.Popen([sys.executable, "-c", SWEEP], cwd=tmp_path, start_new_session=True)
    wait_until((tmp_path / "runs" / "seed-1" / "metrics.jsonl").exists, "the first line of metrics.jsonl")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(HANG) == 130
    calls = [line.split(" cards")[0] for line in control.read_text().splitlines()]
    assert calls == ["arguments=-d stdin=", "arguments= stdin=get_server_list", "arguments= stdin=quit"]


@pytest.mark.parametrize(
    ("device", "gpus", "seen_as"),
    [("cuda:1", ["7"], "cuda"), ("cuda", ["4", "7"], "cuda"), ("auto", ["4", "7"], "auto"), ("cpu", [], "cpu")],
)
def test_the_gpus_are_those_of_the_device(tmp_path, control, monkeypatch, device, gpus, seen_as):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    engine = LocalEngine(2, device=device, mps="off")
    assert engine.gpus == gpus
    for seed in range(2):
        engine.start(job(tmp_path, seed, device))
    children = [environment(job(tmp_path, seed)) for seed in range(2)]
    engine.stop()
    assert [child["CUDA_VISIBLE_DEVICES"] for child in children] == ((gpus * 2)[:2] or ["4,7"] * 2)
    assert all(f"--device={seen_as}" in child["WORDS"].split() for child in children)


@pytest.mark.parametrize(("device", "workers", "threads"), [("cpu", 8, 2), ("cuda", 8, 8), ("cuda", 1, 16)])
def test_on_a_gpu_an_evaluation_may_use_half_of_the_cores(control, monkeypatch, device, workers, threads):
    monkeypatch.setattr(local, "num_cores", lambda: 16)
    assert LocalEngine(workers, device=device, mps="off").threads == threads


@pytest.mark.parametrize(("workers", "threads"), [(1, "16"), (4, "4"), (9, "2")])
def test_runs_that_compile_together_share_the_cores(tmp_path, control, monkeypatch, workers, threads):
    monkeypatch.setattr(local, "num_cores", lambda: 16)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    engine = LocalEngine(workers, device="cuda", mps="off")
    engine.start(job(tmp_path, 1))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")  # what the caller wants is kept
    engine.start(job(tmp_path, 2))
    children = [environment(job(tmp_path, seed)) for seed in (1, 2)]
    engine.stop()
    assert [child["TORCHINDUCTOR_COMPILE_THREADS"] for child in children] == [threads, "7"]


def test_a_gpu_that_is_not_there_is_not_used(control):
    assert LocalEngine(1, device="cuda:2").gpus == []


@pytest.mark.parametrize(
    ("cores", "gigabytes", "gpu_mib", "per_gpu"),
    [(64, 500, 141_000, 6), (16, 500, 141_000, 4), (64, 20, 141_000, 2), (64, 500, 12_000, 3), (1, 2, 1_000, 1)],
)
def test_by_default_as_many_runs_share_a_gpu_as_the_machine_carries(
    tmp_path, control, monkeypatch, cores, gigabytes, gpu_mib, per_gpu
):
    """Two GPUs; the scarcest of cores, memory and GPU memory decides."""
    told = tmp_path / "bin" / "nvidia-smi"
    told.write_text(f"#!/bin/sh\necho {gpu_mib}\necho 141000\n")
    told.chmod(0o755)
    monkeypatch.setattr(local, "num_cores", lambda: cores)
    pages = {"SC_PHYS_PAGES": int(gigabytes * 1e9 / 4096), "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(local.os, "sysconf", pages.__getitem__)
    assert LocalEngine().workers == 2 * per_gpu
    assert LocalEngine(per_gpu=3).workers == 6


@pytest.mark.parametrize("why", ["off", "no program"])
def test_without_mps_a_gpu_is_not_shared_by_default(tmp_path, control, why):
    if why == "no program":
        (tmp_path / "bin" / mps.PROGRAM).unlink()
    assert LocalEngine(mps="off" if why == "off" else "auto").workers == 2


def test_a_run_whose_folder_is_removed_while_it_runs_is_an_outcome(tmp_path, control):
    engine, removed = LocalEngine(1, device="cpu"), job(tmp_path)
    try:
        engine.start(removed)
        environment(removed)
        shutil.rmtree(removed.path.parent)
        os.kill(engine._children[0].process.pid, signal.SIGRTMIN + 1)
        (outcome,) = engine.wait(HANG)
        assert outcome.error == f"killed by signal {signal.SIGRTMIN + 1}"
    finally:
        engine.stop()


def test_a_run_whose_output_was_removed_has_failed_without_any(tmp_path, control, monkeypatch):
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\nrm -r "$RUNS"\nexit 1\n')
    engine, failed = LocalEngine(1, device="cpu"), job(tmp_path)
    monkeypatch.setenv("RUNS", str(failed.path.parent))
    try:
        engine.start(failed)
        (outcome,) = engine.wait(HANG)
        assert outcome.error == "exit code 1 without any output"
    finally:
        engine.stop()
