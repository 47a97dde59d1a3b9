"""Rows of a tensor at given positions, as of a replay buffer's frames: a Triton kernel on GPUs, indexing elsewhere."""

from __future__ import annotations

from torch import Tensor

from playvirtual import kernels

if kernels.AVAILABLE:
    from playvirtual.kernels.triton import gather_triton


def gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """rows[index]: rows (N, …) at positions (…) int64, each from 0 to N − 1 -> (…, …); the kernel has no gradient.

    The kernel needs rows that are contiguous; they may lie apart.
    """
    if kernels.in_use() and rows.is_cuda and rows[:1].is_contiguous():
        gathered: Tensor = gather_triton.gather_rows_op(rows, index)
        return gathered
    return rows[index]
