"""What makes two runs the same experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.config import to_dict
from playvirtual.presets import build
from playvirtual.study.settings import changes
from tests.study.toys import CATCH


@pytest.mark.parametrize(
    ("task", "options", "changed"),
    [
        ("toy/catch", {"lanes": 7}, {"lanes": 7}),
        ("toy/catch", {"lanes": 7, "epsilon": 0.0}, {"epsilon": 0.0}),
        ("toy/reach", {"lanes": 7, "device": "cpu", "threads": 2}, {}),
    ],
)
def test_the_lanes_of_an_evaluation_matter_where_its_moves_are_drawn(
    task: str, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert changes(to_dict(build(task, **options))) == changed


@pytest.mark.parametrize(("epsilon", "same"), [(0.5, False), (0.0, True)])
def test_so_it_is_with_returns(tmp_path: Path, epsilon: float, same: bool) -> None:
    common = {**CATCH, "method": "rl", "episodes": 20, "epsilon": epsilon}
    runs = [pv.train("toy/catch", run_dir=tmp_path / str(lanes), lanes=lanes, **common) for lanes in (3, 20)]
    assert (runs[0].returns == runs[1].returns) is same
