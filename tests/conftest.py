"""Set-up before any test."""

import random
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from playvirtual.messages import log_to_stderr

# Mesa, which draws DMControl without a graphics card, brings an LLVM of its own; Triton, imported after it into the
# same process, crashes the interpreter. The other way round both work.
with suppress(ImportError):
    import triton  # noqa: F401

# pytest's own handlers count as a program's set-up of logging, after which `pv.train` and others print no messages.
log_to_stderr()

# `make test &` in a script inherits that interrupts are ignored, and hands it on to what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is slow or busy is no failure, so nothing is measured against the clock; every run of the tests
# tries the same examples, so that what fails once fails again.
settings.register_profile(
    "playvirtual", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, print_blob=True
)
settings.load_profile("playvirtual")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test begins with the same global random states, whichever tests its process ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that are marked as long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest tests first: one that starts last leaves the other processes without work."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: make test-all"))

    def seconds(item: pytest.Item) -> float:
        marker = item.get_closest_marker("slow")
        return 0.0 if marker is None else marker.kwargs.get("seconds", 5.0)

    items.sort(key=seconds, reverse=True)
