"""What must be there before any test."""

from contextlib import suppress

# Mesa, which draws DMControl without a graphics card, brings an LLVM of its own; Triton, imported after it into the
# same process, crashes the interpreter. The other way round both work.
with suppress(ImportError):
    import triton  # noqa: F401
