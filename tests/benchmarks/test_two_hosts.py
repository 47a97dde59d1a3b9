"""A Ray cluster of two hosts that are apart, one of them lost: a short version of benchmarks/two_hosts.py."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from playvirtual.errors import InputError
from tests.waiting import HANG, wait_until

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "two_hosts.py"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
sys.path.insert(0, str(SCRIPT.parent))  # as `python benchmarks/two_hosts.py` has it
try:
    two_hosts = import_module("two_hosts")
finally:
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.long
@pytest.mark.slow(seconds=40)
def test_a_token_is_carried_along_and_a_lost_host_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        network = two_hosts.Network(tmp_path)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    with network:
        try:
            head, worker = network.host("head"), network.host("worker")
        except (InputError, OSError, subprocess.SubprocessError) as error:
            pytest.skip(str(error))
        two_hosts.ray_command(head, "get-auth-token", "--generate")
        two_hosts.ray_command(head, "start", "--head", "--port=6379", "--num-cpus=1", "--include-dashboard=false")
        address, out = f"{head.address}:6379", tmp_path / "runs"
        code, said = head.run(
            *two_hosts.sweep_words(out, 1, "--engine", "ray", "--address", address), more={"HOME": str(tmp_path)}
        )
        assert (code, len(said.splitlines())) == (2, 1), said
        assert "asks for a token and there is none here" in said
        two_hosts.copy_token(head, worker)
        two_hosts.ray_command(worker, "start", f"--address={address}", "--num-cpus=1", more={"RAY_AUTH_MODE": "token"})
        words = two_hosts.sweep_words(out, 2, "--engine", "ray", "--address", address, "--steps", "600")
        sweep = head.start(words, two_hosts.QUIET, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_until(lambda: sweep.poll() is not None or two_hosts.runs_on(worker, out), "a run on the worker")
        worker.kill()
        said, _ = sweep.communicate(timeout=HANG)
    assert sweep.returncode == 0, said
    assert "2/2 runs finished" in said
