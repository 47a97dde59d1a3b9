"""GPU kernels on a CPU: Triton's interpreter, in processes of its own because it is chosen at import."""

import importlib.util
import json
import os
import select
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.waiting import HANG

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# Reads expressions and answers with exit codes. What takes long to load is there before the first fork.
SERVER = """
import json, os, sys, traceback
import triton, torch._dynamo, hypothesis.strategies, pytest

def become(module, expression, out, err):
    for descriptor, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    names = {}
    exec(f"from {module} import *; print({expression}, flush=True)", names)

while line := sys.stdin.readline():
    if not (child := os.fork()):
        code = 1
        try:
            become(**json.loads(line))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """A process with the interpreter and PyTorch loaded, whose import takes longer than most expressions."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def interpreted(module: str, expression: str) -> float:
    """The value of `expression` over the names of the test module, computed in a fork under the interpreter."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        asked = {"module": module, "expression": expression, "out": str(out), "err": str(err)}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], HANG)[0]:
            server.kill()
            raise TimeoutError(f"{expression}: not within {HANG:.0f} s")
        assert server.stdout.readline() == "0\n", err.read_text()
        return float(out.read_text().split()[-1])
