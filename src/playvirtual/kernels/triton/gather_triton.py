"""Whole rows of a tensor, copied from given positions as wide words by one Triton kernel."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # by their bytes
MOST = 1024  # words that one program copies


@triton.jit
def gather_kernel(rows, index, out, STEP: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK words of the row at one position; rows have WORDS words and begin STEP words apart, in `out` WORDS."""
    i = tl.program_id(0).to(tl.int64)  # a replay buffer has more than 2³¹ bytes, and so may a batch
    position = tl.load(index + i).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(rows + position * STEP + word, mask=word < WORDS)
    tl.store(out + i * WORDS + word, values, mask=word < WORDS)


def word_bytes(rows: Tensor) -> int:
    """The bytes of the widest word that divides a row (contiguous), the distance between rows and where they begin."""
    numbers = (math.prod(rows.shape[1:]), rows.stride(0), rows.storage_offset())
    return math.gcd(max(WORDS), *(number * rows.element_size() for number in numbers))


@torch.library.custom_op("playvirtual::gather_rows", mutates_args=())
def gather_rows_op(rows: Tensor, index: Tensor) -> Tensor:
    """rows[index] by the kernel: contiguous rows (N, …), which may lie apart, positions (…) from 0 to N − 1."""
    out = rows.new_empty((*index.shape, *rows.shape[1:]))
    if out.numel():
        dtype = WORDS[word_bytes(rows)]
        words = rows.view(len(rows), -1).view(dtype)
        count = words.shape[1]
        block = min(triton.next_power_of_2(count), MOST)
        gather_kernel[(index.numel(), triton.cdiv(count, block))](
            words, index.contiguous(), out.view(-1).view(dtype), STEP=words.stride(0), WORDS=count, BLOCK=block,
            num_warps=min(max(block // 256, 1), 4),
        )  # fmt: skip
    return out


@gather_rows_op.register_fake
def _(rows, index):
    return rows.new_empty((*index.shape, *rows.shape[1:]))
