"""Fixtures that several modules share."""

from pathlib import Path

import pytest

import playvirtual as pv
from tests.training.interrupting import CATCH


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `CATCH` that was never interrupted."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("whole") / "run", quiet=True, **CATCH).path
