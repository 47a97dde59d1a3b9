"""The kernels' sources can be read everywhere, and a kernel that cannot be compiled is no secret."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

from playvirtual.kernels import hopper
from playvirtual.kernels.hopper.crop_hopper import sizes_for
from playvirtual.kernels.hopper.cuda_module import has_compiler
from tests.waiting import HANG

CODE = """
from playvirtual.kernels.hopper import crop_hopper, gradients_hopper, rollout_hopper
print(rollout_hopper.source(2, 2) + gradients_hopper.source() + crop_hopper.sizes_for((9, 100, 100), 84, 2).source)
"""


@pytest.mark.slow
def test_sources_are_the_same_in_every_locale() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}
    found = [
        subprocess.run([sys.executable, "-c", CODE], env={**os.environ, **more}, capture_output=True, timeout=HANG)
        for more in ({"PYTHONUTF8": "1"}, ascii_only)
    ]
    assert [done.returncode for done in found] == [0, 0], found[1].stderr.decode()
    assert found[0].stdout == found[1].stdout
    assert "7×7" in found[0].stdout.decode()


@pytest.mark.skipif(has_compiler(), reason="NVRTC is here")
def test_a_kernel_that_cannot_be_compiled_is_named_once(
    caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    with caplog.at_level(logging.WARNING, "playvirtual"):
        for _ in range(2):
            assert not hopper.fits(sizes_for((1, 30, 30), 10, 2), torch.device("cuda"))
    (line,) = caplog.messages
    assert line.startswith("crop: the kernel for Hopper GPUs is not compiled")
    assert "NVRTC" in line
