"""The sweep's MPS daemon: when it is started, what its runs are told, and that it ends.

NVIDIA's control program is played by a script that writes down how it is called, the number of cards by a constant.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from playvirtual.errors import InputError
from playvirtual.presets import build
from playvirtual.study.engines import mps
from playvirtual.study.engines.local import LocalEngine
from playvirtual.study.grids import Job

CONTROL = """#!/bin/sh
if [ -z "$CUDA_MPS_PIPE_DIRECTORY" ]; then  # the question to the daemon of the default folder
    [ "$(cat)" = get_server_list ] && [ -z "$DEAD" ]; exit
fi
echo "arguments=$* stdin=$(cat) cards=$CUDA_VISIBLE_DEVICES pipe=$CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
test -d "$CUDA_MPS_PIPE_DIRECTORY" || echo "no pipe folder" >> "$CALLS"
test -d "$CUDA_MPS_LOG_DIRECTORY" || echo "no log folder" >> "$CALLS"
[ -z "$BROKEN" ] || { echo "An instance of this daemon is already running"; exit 1; }
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script on the PATH writes its calls; two cards are there."""
    program = tmp_path / "bin" / mps.PROGRAM
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    calls = tmp_path / "calls.txt"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path / "nobody")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return calls


def job(tmp_path: Path, seed: int = 1) -> Job:
    """A run that lasts until it is stopped."""
    options = {"steps": 10**8, "device": "cpu"}
    config = build("toy/catch", method="rl", seed=seed, **options)
    return Job("RL", config, options, tmp_path / "runs" / f"seed-{seed}")


def environment(engine: LocalEngine, child: int) -> dict[str, str]:
    """What the kernel says a run was started with."""
    words = Path(f"/proc/{engine._children[child].process.pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if word)  # type: ignore[misc]


def test_runs_that_share_a_card_get_a_daemon_of_their_own_that_ends_with_them(tmp_path, control):
    engine = LocalEngine(per_gpu=2)
    assert engine.workers == 4
    assert not control.exists()  # a plan starts nothing
    for seed in range(3):
        engine.start(job(tmp_path, seed))
    children = [environment(engine, n) for n in range(3)]
    [pipe] = {child["CUDA_MPS_PIPE_DIRECTORY"] for child in children}
    assert [child["CUDA_VISIBLE_DEVICES"] for child in children] == ["0", "1", "0"]
    assert Path(children[0]["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
    engine.stop()
    assert control.read_text().splitlines() == [
        f"arguments=-d stdin= cards=0,1 pipe={pipe}",
        f"arguments= stdin=get_server_list cards=0,1 pipe={pipe}",
        f"arguments= stdin=quit cards=0,1 pipe={pipe}",
    ]
    assert not Path(pipe).parent.exists()


def test_a_daemon_counts_its_cards_from_0_but_knows_names(control):
    daemon = mps.Daemon(["3", "GPU-8f1c"])
    assert [daemon.visible(0), daemon.visible(1)] == ["0", "GPU-8f1c"]
    daemon.stop()
    assert "cards=3,GPU-8f1c" in control.read_text()


@pytest.mark.parametrize(
    "why", ["alone on its card", "off", "one's own by variable", "one's own by default", "no program"]
)
def test_no_daemon_is_started_where_none_is_wanted_or_one_is_there(tmp_path, control, monkeypatch, why):
    if why == "one's own by variable":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mine")
    if why == "one's own by default":
        (tmp_path / "nobody").mkdir()
        (tmp_path / "nobody" / "control").touch()
    if why == "no program":
        (tmp_path / "bin" / mps.PROGRAM).unlink()
    engine = LocalEngine(per_gpu=1 if why == "alone on its card" else 2, mps="off" if why == "off" else "auto")
    engine.start(job(tmp_path))
    assert environment(engine, 0).get("CUDA_MPS_PIPE_DIRECTORY") == os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    engine.stop()
    assert not control.exists()


def test_what_a_dead_daemon_left_behind_counts_for_nothing(tmp_path, control, monkeypatch):
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "control").touch()
    monkeypatch.setenv("DEAD", "1")
    engine = LocalEngine(per_gpu=2)
    engine.start(job(tmp_path))
    assert "playvirtual-mps" in environment(engine, 0)["CUDA_MPS_PIPE_DIRECTORY"]
    engine.stop()
    assert control.read_text().count("arguments=-d") == 1


def test_a_daemon_that_will_not_start_is_said_and_the_runs_go_on(tmp_path, control, monkeypatch, capsys):
    monkeypatch.setenv("BROKEN", "1")
    engine = LocalEngine(per_gpu=2)
    for seed in range(2):
        engine.start(job(tmp_path, seed))
    assert "CUDA_MPS_PIPE_DIRECTORY" not in environment(engine, 1)
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
from playvirtual.presets import build
from playvirtual.study.engines.local import LocalEngine
from playvirtual.study.grids import Job
from playvirtual.study.sweep import sweep
from playvirtual.study.sweep_display import PlainLines
torch.cuda.device_count = lambda: 1
options = {"steps": 10**8, "device": "cpu"}
job = Job("RL", build("toy/catch", method="rl", **options), options, Path("runs/seed-1"))
result = sweep([job], LocalEngine(per_gpu=2), PlainLines())
sys.exit(128 + result.stopped_by)
"""


def test_ctrl_c_ends_the_daemon_after_the_runs(tmp_path, control):
    if Path("/tmp/nvidia-mps/control").exists():
        pytest.skip("somebody runs a daemon here")
    process = subprocess.Popen([sys.executable, "-c", SWEEP], cwd=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs" / "seed-1" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    calls = [line.split(" cards")[0] for line in control.read_text().splitlines()]
    assert calls == ["arguments=-d stdin=", "arguments= stdin=get_server_list", "arguments= stdin=quit"]


@pytest.mark.parametrize(
    ("device", "cards", "told"),
    [("cuda:1", ["7"], "cuda"), ("cuda", ["4", "7"], "cuda"), ("auto", ["4", "7"], "auto"), ("cpu", [], "cpu")],
)
def test_the_cards_are_those_of_the_device(tmp_path, control, monkeypatch, device, cards, told):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    engine = LocalEngine(2, device=device, mps="off")
    assert engine.gpus == cards
    for seed in range(2):
        options = {"device": device}
        config = build("toy/catch", method="rl", seed=seed, **options)
        engine.start(Job("RL", config, options, tmp_path / "runs" / f"seed-{seed}"))
    seen = [environment(engine, n)["CUDA_VISIBLE_DEVICES"] for n in range(2)]
    words = [child.process.args for child in engine._children]
    engine.stop()
    assert seen == ((cards * 2)[:2] or ["4,7"] * 2)
    assert all(f"--device={told}" in each for each in words)


def test_a_card_that_is_not_there_is_no_card(control):
    assert LocalEngine(1, device="cuda:2").gpus == []
