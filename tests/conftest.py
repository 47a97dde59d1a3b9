"""Set-up before any test."""

from contextlib import suppress

from playvirtual.messages import log_to_stderr

# Mesa, which draws DMControl without a graphics card, brings an LLVM of its own; Triton, imported after it into the
# same process, crashes the interpreter. The other way round both work.
with suppress(ImportError):
    import triton  # noqa: F401

# pytest's own handlers count as a program's set-up of logging, after which `pv.train` and others print no messages.
log_to_stderr()
