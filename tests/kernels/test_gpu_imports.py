"""What is imported on machines with a GPU alone is there: without one, a renamed module would go unnoticed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.waiting import HANG

CODE = """
import importlib, pkgutil, torch
torch.cuda.is_available = lambda: True
import playvirtual.agents, playvirtual.kernels, playvirtual.method, playvirtual.replay, playvirtual.training
assert playvirtual.kernels.AVAILABLE
for room in (playvirtual.agents, playvirtual.kernels, playvirtual.method, playvirtual.replay, playvirtual.training):
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
def test_every_module_can_be_imported_where_there_is_a_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert {"playvirtual.kernels.hopper.rollout_hopper", "playvirtual.training.learner"} <= set(done.stdout.split())
