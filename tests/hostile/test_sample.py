"""A sample of benchmarks/hostile.py: bad input by seed ends in time, in one line, and changes nothing else."""

from __future__ import annotations

import pytest

from tests.hostile.conftest import Commands, hostile
from tests.waiting import HANG

CASES = 60
PARTS = 2


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("part", range(PARTS))
def test_bad_input_ends_well(part: int, commands: Commands) -> None:
    numbers = range(part, CASES, PARTS)
    folder = commands.folder / "case"
    outcomes = [hostile.try_case(n, 17, commands.server, commands.originals, folder, HANG) for n in numbers]
    assert [str(outcome) for outcome in outcomes if outcome.kind != "fine"] == []
