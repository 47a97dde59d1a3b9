"""GPU kernels on a CPU: Triton's interpreter, in a process of its own because it is chosen at import."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.waiting import HANG

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def interpreted(module: str, expression: str) -> float:
    """The value of `expression` over the names of the test module, computed under the interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", f"from {module} import *; print({expression})"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split()[-1])
