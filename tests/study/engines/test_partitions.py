"""On a GPU under MPS: a run on a part of the SMs computes as one on all of them does, or is refused.

cuBLAS of CUDA 13.0 multiplies bfloat16 wrongly on 72 and on 98 of an H200's 132 SMs; `device.configure_torch` notices.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from playvirtual.study.engines import mps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.skipif(not mps.can_be_used("auto") or mps.runs_already(), reason="no MPS daemon of our own"),
]
ROOT = Path(__file__).parents[3]
SHORT = ("--steps", "500", "--learning-starts", "400", "--eval-episodes", "1", "--quiet")


@pytest.fixture(scope="module")
def daemon() -> Iterator[mps.Daemon]:
    found = mps.Daemon(["0"])
    yield found
    found.stop()


def with_a_part(daemon: mps.Daemon, percentage: int, *command: str) -> subprocess.CompletedProcess[str]:
    """The command as a client that has so many percent of the SMs."""
    part = {"CUDA_VISIBLE_DEVICES": daemon.visible(0), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    environment = {**os.environ, **daemon.environment, **part}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize("percentage", [100, 56, 50, 25])
def test_kernels_agree_with_pytorch(daemon: mps.Daemon, percentage: int) -> None:
    tests = ("tests/kernels", "-m", "not slow", "-k", "compiled or agree", "-q", "-p", "no:cacheprovider")
    done = with_a_part(daemon, percentage, "pytest", *tests)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("percentage", [100, 75, 56, 50, 25])
@pytest.mark.parametrize("method", ["spr", "playvirtual"])
def test_a_run_has_finite_losses_or_is_refused(
    daemon: mps.Daemon, percentage: int, method: str, tmp_path: Path
) -> None:
    command = ("playvirtual", "train", "atari/pong", "--method", method, "--run-dir", str(tmp_path / "run"), *SHORT)
    done = with_a_part(daemon, percentage, *command)
    refused = f"error: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: {percentage} leaves" in done.stderr
    assert done.returncode == 0 or refused, done.stderr[-3000:]
    assert not (refused and percentage == 100)
