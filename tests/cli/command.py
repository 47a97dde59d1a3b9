"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import HANG

QUICK = ("--steps=120", "--learning-starts=60", "--K=2", "--eval-episodes=4", "--eval-every=60", "--log-every=60")


def playvirtual(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `playvirtual WORDS` and returns its exit code and output."""
    return subprocess.run(
        [sys.executable, "-m", "playvirtual", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
