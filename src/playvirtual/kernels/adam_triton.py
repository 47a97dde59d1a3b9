"""Clipping and Adam for all parameters of a network by three Triton launches, however many tensors there are."""

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
# in it (bytes), how many numbers there are, the group's number, and the group's chunks [first, last).
FIELDS = 9


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
    """The sum of each chunk's squared gradient."""
    row = table + tl.program_id(0) * FIELDS
    count = tl.load(row + 5)
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
    """One step of Adam: g ← factor · g, then the moments m and v, then p ← p − rate · m / (√v / root + ε)."""
    g = tl.load(g_at + i, mask=inside) * factor
    m = BETA1 * tl.load(m_at + i, mask=inside) + (1.0 - BETA1) * g
    v = BETA2 * tl.load(v_at + i, mask=inside) + (1.0 - BETA2) * g * g
    tl.store(m_at + i, m, mask=inside)
    tl.store(v_at + i, v, mask=inside)
    tl.store(p_at + i, tl.load(p_at + i, mask=inside) - rate * m / (tl.sqrt(v) / root + eps), mask=inside)


@triton.jit
def clipped_adam_kernel(table, addresses, squares, norms, step, lr, eps, max_norm, BETA1: tl.constexpr,
             BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, FIELDS: tl.constexpr,
             CHUNK: tl.constexpr, ALIGNED: tl.constexpr, MOST: tl.constexpr):  # fmt: skip
    """One step of Adam on a chunk, its gradient scaled so that its group's norm is at most `max_norm`."""
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
    if count == CHUNK:
        _adam(p_at, m_at, v_at, g_at, i, None, factor, rate, root, eps, BETA1, BETA2)
    else:
        _adam(p_at, m_at, v_at, g_at, i, i < count, factor, rate, root, eps, BETA1, BETA2)


class FusedClippedAdam:
    """The steps of one Adam in kernels, which know all tensors by their addresses: those must not change."""

    def __init__(self, adam: torch.optim.Adam, groups: Mapping[str, Sequence[nn.Parameter]], max_norm: float) -> None:
        """Adam must have its moments, which it makes at its first step, and the parameters their gradients.

        All of them have taken the same number of steps, so that one counter serves all.
        """
        self._adam, self._groups, self._max_norm = adam, groups, max_norm
        for _, p, *_ in self._find():
            for name in ("exp_avg", "exp_avg_sq"):
                moment = adam.state[p][name]
                if moment.stride() != p.stride():  # as after loading; the kernels need equal memory layouts
                    adam.state[p][name] = torch.empty_like(p).copy_(moment)
        self._tensors = self._find()
        self._at = _addresses(self._tensors)
        rows: list[list[int]] = []
        spans = {group: [0, 0] for group in range(len(groups) + 1)}  # chunks [first, last) of each group
        for number, (group, *tensors) in enumerate(self._tensors):
            count, places = tensors[0].numel(), [tensor.data_ptr() for tensor in tensors]
            begin = len(rows)
            for start in range(0, count, CHUNK):
                at = start * tensors[0].element_size()
                rows.append([*(place + at for place in places), number, at, min(CHUNK, count - start), group])
            if group < len(groups):  # the others' norms have no max_norm
                spans[group] = [begin if spans[group] == [0, 0] else spans[group][0], len(rows)]
        table = np.array([[*row, *spans[row[6]]] for row in rows], np.int64)
        device = self._tensors[0].parameter.device
        self._table = torch.from_numpy(table).to(device)
        self._addresses = torch.zeros(len(self._tensors), dtype=torch.int64, device=device)
        self._squares = torch.zeros(len(rows), device=device)
        self._norms = torch.zeros(len(groups) + 1, device=device)
        self._most = triton.next_power_of_2(max(1, *(last - first for first, last in spans.values())))

    def is_valid(self) -> bool:
        """Whether the same parameters have gradients as at the start, and all tensors are where they were."""
        return _addresses(self._find()) == self._at

    def step(self) -> dict[str, Tensor]:
        """One clipped step; returns the groups' norms before clipping."""
        settings: dict[str, Any] = self._adam.param_groups[0]
        beta1, beta2 = settings["betas"]
        gradients = tuple(entry.parameter.grad for entry in self._tensors if entry.parameter.grad is not None)
        addresses = [*self._at, *(gradient.data_ptr() for gradient in gradients)]
        tiles = {"FIELDS": FIELDS, "CHUNK": CHUNK, "ALIGNED": all(address % 16 == 0 for address in addresses)}
        steps = [self._adam.state[entry.parameter]["step"] for entry in self._tensors]
        torch._foreach_add_(steps, 1)
        collect_kernel[(1,)](gradients, self._addresses, num_warps=1)
        programs = (len(self._table),)
        squares_kernel[programs](self._table, self._addresses, self._squares, **tiles)
        clipped_adam_kernel[programs](
            self._table, self._addresses, self._squares, self._norms, steps[0], settings["lr"], settings["eps"],
            self._max_norm, BETA1=beta1, BETA2=beta2, LOG_BETA1=_log(beta1), LOG_BETA2=_log(beta2), **tiles,
            MOST=self._most,
        )  # fmt: skip
        return dict(zip(self._groups, self._norms.clone().unbind(), strict=False))

    def _find(self) -> list["_Entry"]:
        """Every parameter that has a gradient, group by group; last those in no group."""
        group_of = {id(p): number for number, group in enumerate(self._groups.values()) for p in group}
        entries = []
        for p in self._adam.param_groups[0]["params"]:
            if p.grad is not None:
                state = self._adam.state[p]
                entries.append(_Entry(group_of.get(id(p), len(self._groups)), p, state["exp_avg"], state["exp_avg_sq"]))
        return sorted(entries, key=lambda entry: entry.group)


class _Entry(NamedTuple):
    group: int
    parameter: Tensor
    mean: Tensor
    square: Tensor


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def _addresses(entries: list[_Entry]) -> list[int]:
    return [tensor.data_ptr() for _, *tensors in entries for tensor in tensors]
