"""Bad input to the programs under benchmarks/: one line that names the field, exit code 2, nothing measured."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)

BAD = [
    ("runs_per_card.py toy/cach 1", "task: 'toy/cach' is not known; did you mean 'toy/catch'? allowed: "),
    ("runs_per_card.py toy/catch 0", "N: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("runs_per_card.py toy/catch 1 --compile fast", "compile: 'fast' is not known; allowed: cudagraph, full, off"),
    ("runs_per_card.py toy/catch 1 --seconds -1", "seconds: '-1' is not allowed; allowed: numbers above 0"),
    ("runs_per_card.py toy/catch 1 --mps maybe", "mps: 'maybe' is not known; allowed: both, off, on"),
    (
        "runs_per_card.py toy/catch 1 --out nowhere/rows.json",
        "out: 'nowhere/rows.json' is not allowed; allowed: a file",
    ),
    ("update_speed.py --only nothing", "only: 'nothing' is in no row's label; allowed: "),
    ("update_speed.py --jobs 0", "jobs: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("update_speed.py --only growth-K --device abacus", "device: 'abacus' is not allowed; allowed: auto, cpu, cuda"),
    ("update_speed.py --out nowhere/rows.json", "out: 'nowhere/rows.json' is not allowed; allowed: a file"),
    ("gradient_noise.py nowhere", "run: 'nowhere' has no checkpoint; allowed: the folder of a run that has one"),
    ("gradient_noise.py nowhere --batches 0", "batches: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("update_kernels.py atari/pong --updates 0", "updates: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("update_kernels.py atari/pnog", "task: 'atari/pnog' is not known; did you mean 'atari/pong'?"),
    ("rollout_speed.py --repeats 0", "repeats: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("rollout_speed.py --M 12,x", "M: '12,x' is not allowed; allowed: whole numbers with commas"),
    ("encoder_speed.py --views 0", "views: '0' is not allowed; allowed: whole numbers above 0 with commas"),
    ("encoder_speed.py --repeats 0", "repeats: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("targets.py", "the following arguments are required: --out"),
    ("targets.py --out nowhere/figures.json", "out: 'nowhere/figures.json' is not allowed; allowed: a file"),
    ("targets.py --out t.json --only updtes", "only: 'updtes' is not known; did you mean 'updates'? allowed: "),
    ("acting_speed.py toy/cach", "task: 'toy/cach' is not known; did you mean 'toy/catch'? allowed: "),
    ("acting_speed.py toy/catch --steps 0", "steps: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("cpu_profile.py toy/catch toy/cach", "task: 'toy/cach' is not known; did you mean 'toy/catch'? allowed: "),
    ("cpu_profile.py --steps -5", "steps: '-5' is not allowed; allowed: whole numbers, 40 or more"),
    ("async_envs.py toy/catch --num-envs 0", "num-envs: '0' is not allowed; allowed: whole numbers, 2 or more"),
    ("async_envs.py atari/pnog", "task: 'atari/pnog' is not known; did you mean 'atari/pong'? allowed: "),
    ("cpu_versions.py nowhere .", "first: 'nowhere' is not allowed; allowed: a folder that holds src/playvirtual"),
    ("cpu_versions.py ROOT ROOT --rows toy/catch", "rows: 'toy/catch' is not allowed; allowed: TASK:METHOD"),
    ("cpu_versions.py ROOT ROOT --rows toy/cach:rl", "rows: the version in "),
    ("version_worker.py", "words: '' is not allowed; allowed: settings TASK:METHOD …, or train TASK:METHOD SETTINGS"),
    ("version_worker.py train toy/catch:rl", "words: 'train toy/catch:rl' is not allowed; allowed: "),
    ("checkpoint_cost.py pnog", "task: 'atari/pnog' is not known; did you mean 'atari/pong'? allowed: "),
    ("chaos.py --tasks toy/catch,toy/cach", "tasks: 'toy/cach' is not known; did you mean 'toy/catch'? allowed: "),
    ("chaos.py --kills 0", "kills: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("chaos.py --longest nan", "longest: 'nan' is not allowed; allowed: numbers, 0 or more"),
    ("chaos.py --seed one", "seed: 'one' is not allowed; allowed: whole numbers, 0 or more"),
    ("hostile.py --cases 0", "cases: '0' is not allowed; allowed: whole numbers, 1 or more"),
    ("hostile.py --src nowhere", "src: 'nowhere' is not allowed; allowed: a folder that holds playvirtual/"),
    ("two_hosts.py --loss flood", "loss: 'flood' is not known; allowed: kill, power, unplug"),
    ("power_loss.py --resume -1", "resume: '-1' is not allowed; allowed: whole numbers, 0 or more"),
    ("report_scale.py --runs 0", "runs: '0' is not allowed; allowed: whole numbers, 1 or more"),
    (
        "report_scale.py --out ROOT/benchmarks/script.py/report",
        f"out: '{SCRIPTS / 'script.py' / 'report'}' is not allowed (Not a directory); allowed: a folder",
    ),
]
NO_GPU = [
    "runs_per_card.py toy/catch 1 --device cuda",
    "update_speed.py --only growth-K --device cuda",
    "acting_speed.py toy/catch --device cuda",
    "equality.py --device cuda",
    "chaos.py --device cuda",
]


Complaint = Callable[[str], str]


@pytest.fixture
def complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Complaint:
    """The one line that a script prints for these arguments, before anything else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)  # as `python benchmarks/SCRIPT` has it

    def run(command: str) -> str:
        script, *words = command.replace("ROOT", str(SCRIPTS.parent)).split()
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / script), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPTS / script), run_name="__main__")
        out, err = capfd.readouterr()
        assert (ended.value.code, out) == (2, ""), err
        (line,) = err.splitlines()
        return line

    return run


@pytest.mark.parametrize(("command", "start"), BAD, ids=[command for command, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(command: str, start: str, complaint: Complaint) -> None:
    assert complaint(command).startswith(f"error: {start}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", NO_GPU)
def test_a_gpu_that_is_not_there_is_bad_input(command: str, complaint: Complaint) -> None:
    assert complaint(command) == "error: device: 'cuda' is not there (PyTorch sees no GPU); allowed: auto, cpu"
