"""docs/your-agent.md is a program: its Python blocks run in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_extending import RUNNER, blocks
from tests.waiting import HANG

PAGE = Path(__file__).parents[1] / "docs" / "your-agent.md"


@pytest.mark.slow
def test_every_python_block_of_the_page_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(PAGE)],
        input=json.dumps(blocks("python", PAGE)),
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    shape, dependence = done.stdout.splitlines()
    assert shape == "torch.Size([32])"
    assert 0 < float(dependence) < 1
