"""The table of docs/your-agent.md is what results/your-agent holds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE = ROOT / "benchmarks" / "your_agent.py", ROOT / "docs" / "your-agent.md"
if not SCRIPT.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def test_the_page_has_the_measured_table() -> None:
    script = runpy.run_path(str(SCRIPT))
    lines = script["table"]()
    assert len(lines) == 2 + 2 * len(script["HOSTS"])  # without and with the objective
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8")
