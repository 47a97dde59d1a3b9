"""Waiting for what happens in other processes and threads, however slow the machine is."""

import time
from collections.abc import Callable

HANG = 300.0  # seconds after which what is waited for hangs; no test depends on anything taking less


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Returns as soon as `happened()` is true."""
    end = time.monotonic() + HANG
    while not happened():
        assert time.monotonic() < end, f"{what}: not within {HANG:.0f} s"
        time.sleep(0.02)
