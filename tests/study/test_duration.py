"""How durations are read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from playvirtual.study.duration import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42.4, "42 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (12_600.0, "3.5 h"),
        (181_440.0, "2.1 d"),
    ],
)
def test_a_duration_has_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_report_needs_neither_the_sweep_nor_its_terminal() -> None:
    code = "import sys, playvirtual.study.report; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"playvirtual.study.sweep", "playvirtual.study.sweep_display", "rich"} & set(loaded)
