"""Rows at given positions: the kernel against PyTorch's indexing, with words of every width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels.gather import gather_rows
from tests.interpreted import interpreted, needs_triton

NUM_ROWS = 5
ROWS: list[tuple[tuple[int, ...], torch.dtype, int]] = [  # shape and type of a row; the bytes of its widest word
    ((7,), torch.uint8, 1),
    ((1, 35, 43), torch.uint8, 1),  # 1,505 words: more than one program copies
    ((3, 5, 2), torch.uint8, 2),
    ((2, 1), torch.bool, 2),
    ((1, 3, 4), torch.uint8, 4),
    ((5,), torch.float32, 4),
    ((), torch.float32, 4),
    ((3, 2, 4), torch.uint8, 8),
    ((), torch.int64, 8),
    ((1, 84, 84), torch.uint8, 8),
    ((3, 20, 90), torch.float32, 8),  # 2,700 words
]
INDICES = [
    torch.tensor(4),
    torch.tensor([0, 4, 4, 1]),
    torch.tensor([[3, 4], [0, 0], [2, 3]]),
    torch.tensor([[3, 4], [0, 0], [2, 3]]).t(),
    torch.tensor([[[1]], [[4]]]),
    torch.zeros(0, dtype=torch.int64),
    torch.zeros(3, 0, dtype=torch.int64),
]


def some_rows(shape: tuple[int, ...], dtype: torch.dtype, gap: int = 0, before: int = 0, device: str = "cpu") -> Tensor:
    """(NUM_ROWS, *shape): contiguous rows of random numbers, `gap` elements apart, with `before` ahead of them."""
    size = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(size)
    elements = torch.randint(256, (before + NUM_ROWS * (size + gap),), generator=generator).to(device, dtype)
    rows = elements[before:].view(NUM_ROWS, size + gap)[:, :size]
    return rows.unflatten(1, shape) if shape else rows[:, 0]


def check_gather(rows: Tensor, index: Tensor) -> None:
    """Compares the operator with indexing: values, type and shape, and that the result has memory of its own."""
    from playvirtual.kernels.triton import gather_triton

    gathered, expected = gather_triton.gather_rows_op(rows, index), rows[index]
    assert torch.equal(gathered, expected)
    assert (gathered.dtype, gathered.device, gathered.shape) == (rows.dtype, rows.device, expected.shape)
    assert gathered.is_contiguous()
    if gathered.numel():
        assert gathered.untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()


def check_gathers(device: str) -> None:
    """Rows next to each other and apart, by every index."""
    for shape, dtype, _ in ROWS:
        for gap, before in ((0, 0), (1, 0), (2, 2), (4, 8), (8, 3)):
            rows = some_rows(shape, dtype, gap, before, device)
            for index in INDICES:
                check_gather(rows, index.to(device))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.sampled_from([torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64]),
    st.integers(0, 17),
    st.integers(0, 17),
    st.lists(st.integers(0, NUM_ROWS - 1), max_size=6),
)
def check_any_gather(shape: tuple[int, ...], dtype: torch.dtype, gap: int, before: int, index: list[int]) -> None:
    check_gather(some_rows(shape, dtype, gap, before), torch.tensor(index, dtype=torch.int64))


def check_bytes_beyond_32_bits(device: str) -> None:
    """Rows of 3 bytes that begin 2³⁰ + 1 bytes apart; only a few pages of the memory are ever touched."""
    step = 2**30 + 1
    memory = torch.empty(2 * step + 3, dtype=torch.uint8, device=device)
    rows = memory.as_strided((3, 3), (step, 1))
    rows.copy_(torch.arange(9).view(3, 3))
    check_gather(rows, torch.tensor([2, 0, 2, 1], device=device))


def check_that_nothing_else_is_written(device: str) -> None:
    """Words after the last row of the result stay as they are."""
    from playvirtual.kernels.triton import gather_triton

    rows, out = torch.arange(15, device=device).view(5, 3), torch.full((12,), -1, device=device)
    index = torch.tensor([4, 1], device=device)
    gather_triton.gather_kernel[(2, 2)](rows, index, out, STEP=3, WORDS=3, BLOCK=2)
    assert out.tolist() == [12, 13, 14, 3, 4, 5] + 6 * [-1]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    "check",
    [
        "check_gathers('cpu')",
        "check_any_gather()",
        "check_bytes_beyond_32_bits('cpu')",
        "check_that_nothing_else_is_written('cpu')",
    ],
)
def test_the_interpreted_kernel_gathers_what_indexing_does(check: str) -> None:
    assert interpreted("tests.kernels.test_gather", f"float({check} is None)") == 1


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_the_compiled_kernel_gathers_what_indexing_does() -> None:
    check_gathers("cuda")
    check_bytes_beyond_32_bits("cuda")
    check_that_nothing_else_is_written("cuda")


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_are_gathered_on_a_gpu(compiled: bool) -> None:
    """By the kernel or, where a row is not in one piece, by PyTorch."""
    gather = torch.compile(gather_rows) if compiled else gather_rows
    index = torch.tensor([[4, 0], [3, 3]], device="cuda")
    frames = some_rows((4, 12, 12), torch.uint8, device="cuda")
    for rows in (frames, frames[1:], frames[:, 1:3], frames.transpose(1, 3), frames[:, :, 2:9, 2:9]):
        at = index.clamp_max(len(rows) - 1)
        assert torch.equal(gather(rows, at), rows[at])


def test_rows_are_gathered_without_a_gpu() -> None:
    for shape, dtype, _ in ROWS:
        rows = some_rows(shape, dtype)
        for index in INDICES:
            gathered = gather_rows(rows, index)
            assert gathered.shape == (*index.shape, *shape)
            assert gathered.flatten().tolist() == [x for i in index.flatten() for x in rows[int(i)].flatten().tolist()]


@needs_triton
def test_words_are_as_wide_as_rows_their_distance_and_their_beginning_allow() -> None:
    from playvirtual.kernels.triton.gather_triton import word_bytes

    for shape, dtype, widest in ROWS:
        size = dtype.itemsize
        assert word_bytes(some_rows(shape, dtype)) == widest
        assert word_bytes(some_rows(shape, dtype, gap=16, before=32)) == widest
        for elements in (1, 2, 4):
            assert word_bytes(some_rows(shape, dtype, gap=elements)) == min(widest, elements * size)
            assert word_bytes(some_rows(shape, dtype, before=elements)) == min(widest, elements * size)
