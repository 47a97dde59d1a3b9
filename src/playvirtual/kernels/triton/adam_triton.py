"""Clipping and Adam for all parameters of a network by three Triton launches, however many tensors there are.

They also count the steps and, if asked to, write the new parameters to a second place, such as a target network.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

CHUNK = 2048  # numbers that a program works on
# A row of the table of chunks: its addresses in the parameter and in Adam's two moments, the tensor's number, the place
# in it (bytes), how many numbers there are, the group's number, the group's chunks [first, last), where the tensor's
# steps are counted, and the chunk's address in the parameter's copy, or 0.
FIELDS = 11


@triton.jit
def collect_kernel(gradients, addresses):
    """Writes down where each gradient lies: a graph that is captured keeps it, the host need not copy anything."""
    for i in tl.static_range(len(gradients)):
        tl.store(addresses + i, gradients[i].to(tl.int64))


@triton.jit
def _numbers(address, ALIGNED: tl.constexpr):
    """Where a chunk's numbers lie."""
    at = address.to(tl.pointer_type(tl.float32))
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    return at


@triton.jit
def squares_kernel(table, addresses, squares, FIELDS: tl.constexpr, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """The sum of each chunk's squared gradient; counts a step of every tensor."""
    row = table + tl.program_id(0) * FIELDS
    count = tl.load(row + 5)
    steps_at = tl.load(row + 9).to(tl.pointer_type(tl.float32))
    if tl.load(row + 4) == 0:  # the tensor's first chunk
        tl.store(steps_at, tl.load(steps_at) + 1.0)
    g_at = _numbers(tl.load(addresses + tl.load(row + 3)) + tl.load(row + 4), ALIGNED)
    i = tl.arange(0, CHUNK)
    # Without a mask several numbers are read at a time.
    if count == CHUNK:  # noqa: SIM108
        g = tl.load(g_at + i)
    else:
        g = tl.load(g_at + i, mask=i < count, other=0.0)
    tl.store(squares + tl.program_id(0), tl.sum(g * g))


@triton.jit
def _adam(p_at, m_at, v_at, g_at, i, inside, factor, rate, root, eps, BETA1: tl.constexpr, BETA2: tl.constexpr):
    """One step of Adam: g ← factor · g, then the moments m and v, then p ← p − rate · m / (√v / root + ε), returned."""
    g = tl.load(g_at + i, mask=inside) * factor
    m = BETA1 * tl.load(m_at + i, mask=inside) + (1.0 - BETA1) * g
    v = BETA2 * tl.load(v_at + i, mask=inside) + (1.0 - BETA2) * g * g
    tl.store(m_at + i, m, mask=inside)
    tl.store(v_at + i, v, mask=inside)
    p = tl.load(p_at + i, mask=inside) - rate * m / (tl.sqrt(v) / root + eps)
    tl.store(p_at + i, p, mask=inside)
    return p


@triton.jit
def clipped_adam_kernel(table, addresses, squares, norms, step, lr, eps, max_norm, BETA1: tl.constexpr,
             BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, FIELDS: tl.constexpr,
             CHUNK: tl.constexpr, ALIGNED: tl.constexpr, MOST: tl.constexpr, COPY: tl.constexpr):  # fmt: skip
    """One step of Adam on a chunk, its gradient scaled so that its group's norm is at most `max_norm`.

    With COPY the chunk is also written to its copy, if it has one.
    """
    chunk = tl.program_id(0)
    row = table + chunk * FIELDS
    group, first, last = tl.load(row + 6), tl.load(row + 7), tl.load(row + 8)
    # Every program adds up its group's sums itself, in the same order: no further launch, and bit-identical results.
    others = first + tl.arange(0, MOST)
    norm = tl.sqrt(tl.sum(tl.load(squares + others, mask=others < last, other=0.0)))
    tl.store(norms + group, norm, mask=chunk == first)
    factor = tl.minimum(max_norm / (norm + 1e-6), 1.0, propagate_nan=tl.PropagateNan.ALL)
    factor = tl.where(first == last, 1.0, factor)  # in no group: no max_norm
    t = tl.load(step).to(tl.float64)  # 1 − β^t needs more digits than float32 has
    rate = (lr / (1.0 - tl.exp(t * LOG_BETA1))).to(tl.float32)
    root = tl.sqrt((1.0 - tl.exp(t * LOG_BETA2)).to(tl.float32))
    p_at = _numbers(tl.load(row), ALIGNED)
    m_at = _numbers(tl.load(row + 1), ALIGNED)
    v_at = _numbers(tl.load(row + 2), ALIGNED)
    g_at = _numbers(tl.load(addresses + tl.load(row + 3)) + tl.load(row + 4), ALIGNED)
    count, i = tl.load(row + 5), tl.arange(0, CHUNK)
    copy = tl.load(row + 10)
    copy_at = _numbers(copy, ALIGNED)
    if count == CHUNK:
        p = _adam(p_at, m_at, v_at, g_at, i, None, factor, rate, root, eps, BETA1, BETA2)
        if COPY and copy != 0:
            tl.store(copy_at + i, p)
    else:
        p = _adam(p_at, m_at, v_at, g_at, i, i < count, factor, rate, root, eps, BETA1, BETA2)
        if COPY and copy != 0:
            tl.store(copy_at + i, p, mask=i < count)


class FusedClippedAdam:
    """The steps of one Adam in kernels, which know all tensors by their addresses: those must not change."""

    def __init__(
        self,
        adam: torch.optim.Adam,
        groups: Mapping[str, Sequence[nn.Parameter]],
        max_norm: float,
        copies: Sequence[tuple[nn.Parameter, Tensor]] = (),
    ) -> None:
        """Adam must have its moments, which it makes at its first step, and the parameters their gradients.

        All of them have taken the same number of steps, so that one counter serves all. `copies` are parameters and
        tensors with their numbers in the same order.
        """
        self._adam, self._groups, self._max_norm, self._copies = adam, groups, max_norm, copies
        for _, p, *_ in self._find():
            for name in ("exp_avg", "exp_avg_sq"):
                moment = adam.state[p][name]
                if moment.stride() != p.stride():  # as after loading; the kernels need equal memory layouts
                    adam.state[p][name] = torch.empty_like(p).copy_(moment)
        self._tensors = self._find()
        self._at = _addresses(self._tensors)
        numbers = [t for _, p, mean, square, _, copy in self._tensors for t in (p, mean, square, copy) if t is not None]
        self._aligned = all(tensor.data_ptr() % 16 == 0 for tensor in numbers)
        self.copied = {id(entry.parameter) for entry in self._tensors if entry.copy is not None}
        rows: list[list[int]] = []
        spans = {group: [0, 0] for group in range(len(groups) + 1)}  # chunks [first, last) of each group
        ends: list[list[int]] = []  # of the rows, behind their group's chunks
        for number, (group, p, mean, square, steps, copy) in enumerate(self._tensors):
            count, places = p.numel(), [tensor.data_ptr() for tensor in (p, mean, square)]
            begin = len(rows)
            for start in range(0, count, CHUNK):
                at = start * p.element_size()
                rows.append([*(place + at for place in places), number, at, min(CHUNK, count - start), group])
                ends.append([steps.data_ptr(), 0 if copy is None else copy.data_ptr() + at])
            if group < len(groups):  # the others' norms have no max_norm
                spans[group] = [begin if spans[group] == [0, 0] else spans[group][0], len(rows)]
        table = np.array([[*row, *spans[row[6]], *end] for row, end in zip(rows, ends, strict=True)], np.int64)
        device = self._tensors[0].parameter.device
        self._table = torch.from_numpy(table).to(device)
        self._addresses = torch.zeros(len(self._tensors), dtype=torch.int64, device=device)
        self._squares = torch.zeros(len(rows), device=device)
        self._norms = torch.zeros(len(groups) + 1, device=device)
        self._most = triton.next_power_of_2(max(1, *(last - first for first, last in spans.values())))

    def is_valid(self) -> bool:
        """Whether the same parameters have gradients as at the start, and all tensors are where they were."""
        return _addresses(self._find()) == self._at

    def step(self, *, copy: bool = False) -> dict[str, Tensor]:
        """One clipped step, after which copies are equal if asked for; returns the groups' norms before clipping."""
        settings: dict[str, Any] = self._adam.param_groups[0]
        beta1, beta2 = settings["betas"]
        gradients = tuple(entry.parameter.grad for entry in self._tensors if entry.parameter.grad is not None)
        aligned = self._aligned and all(gradient.data_ptr() % 16 == 0 for gradient in gradients)
        tiles = {"FIELDS": FIELDS, "CHUNK": CHUNK, "ALIGNED": aligned}
        collect_kernel[(1,)](gradients, self._addresses, num_warps=1)
        programs = (len(self._table),)
        squares_kernel[programs](self._table, self._addresses, self._squares, **tiles)
        clipped_adam_kernel[programs](
            self._table, self._addresses, self._squares, self._norms, self._tensors[0].steps, settings["lr"],
            settings["eps"], self._max_norm, BETA1=beta1, BETA2=beta2, LOG_BETA1=_log(beta1), LOG_BETA2=_log(beta2),
            **tiles, MOST=self._most, COPY=copy,
        )  # fmt: skip
        return dict(zip(self._groups, self._norms.clone().unbind(), strict=False))

    def _find(self) -> list["_Entry"]:
        """Every parameter that has a gradient, group by group; last those in no group."""
        group_of = {id(p): number for number, group in enumerate(self._groups.values()) for p in group}
        copy_of = {id(p): copy for p, copy in self._copies}
        entries = []
        for p in self._adam.param_groups[0]["params"]:
            if p.grad is not None:
                state, group = self._adam.state[p], group_of.get(id(p), len(self._groups))
                moments = state["exp_avg"], state["exp_avg_sq"]
                entries.append(_Entry(group, p, *moments, state["step"], copy_of.get(id(p))))
        return sorted(entries, key=lambda entry: entry.group)


class _Entry(NamedTuple):
    group: int
    parameter: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor
    copy: Tensor | None


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def _addresses(entries: list[_Entry]) -> list[int]:
    return [tensor.data_ptr() for _, *tensors in entries for tensor in tensors if tensor is not None]
