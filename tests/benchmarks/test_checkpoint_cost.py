"""What a checkpoint costs can be measured: the script follows the code that writes and restores checkpoints."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


@pytest.mark.slow  # 10 s
def test_a_games_line_has_sizes_and_times(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", ["checkpoint_cost.py", "pong", "--steps", "5000"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / "checkpoint_cost.py"), run_name="__main__")
    assert not ended.value.code
    line = capsys.readouterr().out.splitlines()[-1]
    figures = r"\| pong \| (\S+) MB \| (\S+) MB \| (\S+) s \| (\S+) s \| (\S+) s \|"
    size, frames, *seconds = map(float, re.fullmatch(figures, line).groups())  # type: ignore[union-attr]
    assert size > frames > 0
    assert all(0 < value < 60 for value in seconds)
