"""Finished runs that several files of tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

import playvirtual as pv
from tests.study.toys import TOYS


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small finished run of SPR on each toy, probed at will and otherwise left as it is."""
    root = tmp_path_factory.mktemp("runs")
    return {
        task: pv.train(
            task, method="spr", K=2, run_dir=root / task.replace("/", "-") / "spr" / "seed-1", **options
        ).path
        for task, options in TOYS.items()
    }
