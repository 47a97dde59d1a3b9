"""Set-up before any test."""

from contextlib import suppress

import pytest

from playvirtual.messages import log_to_stderr

# Mesa, which draws DMControl without a graphics card, brings an LLVM of its own; Triton, imported after it into the
# same process, crashes the interpreter. The other way round both work.
with suppress(ImportError):
    import triton  # noqa: F401

# pytest's own handlers count as a program's set-up of logging, after which `pv.train` and others print no messages.
log_to_stderr()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests first: a long one that starts last would leave the other processes without work."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
