"""The command line in processes of their own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from tests.waiting import HANG

QUICK = ("--steps=120", "--learning-starts=60", "--K=2", "--eval-episodes=4", "--eval-every=60", "--log-every=60")


def started(*words: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """Runs `playvirtual WORDS` in an interpreter of its own and returns its exit code and output."""
    return subprocess.run(
        [sys.executable, "-m", "playvirtual", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
    )


# Reads commands and answers with exit codes. What a training loads is there before the first fork.
SERVER = """
import json, os, runpy, sys
import torch._dynamo, playvirtual.api, playvirtual.cli.main

def become(words, cwd, out, err):
    os.chdir(cwd)
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["playvirtual", *words]
    sys.path[0] = cwd
    runpy.run_module("playvirtual", run_name="__main__", alter_sys=True)

while line := sys.stdin.readline():
    if not (child := os.fork()):
        become(**json.loads(line))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """Runs commands in forks of one process that has PyTorch loaded, whose import takes longer than most commands."""

    def __init__(self, **environment: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, cwd: Path, stderr: str | None = None) -> CompletedProcess[str]:
        """Runs `playvirtual WORDS` and returns its exit code and output; stderr may go to a file instead."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            out.touch()
            err.touch()
            command = {"words": words, "cwd": str(cwd), "out": str(out), "err": stderr or str(err)}
            self._server.stdin.write(json.dumps(command) + "\n")
            self._server.stdin.flush()
            if not select.select([self._server.stdout], [], [], HANG)[0]:
                self._server.kill()
                raise TimeoutError(f"playvirtual {' '.join(words)}: not within {HANG:.0f} s")
            code = int(self._server.stdout.readline())
            return CompletedProcess(["playvirtual", *words], code, out.read_text(), err.read_text())


@cache
def _forks() -> Forks:
    return Forks()


def playvirtual(*words: str, cwd: Path, stderr: str | None = None) -> CompletedProcess[str]:
    """Runs `playvirtual WORDS` in a fork of a process that has PyTorch loaded; see `Forks.run`."""
    return _forks().run(*words, cwd=cwd, stderr=stderr)
