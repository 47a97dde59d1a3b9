"""Rollouts of the convolutional dynamics by one launch each way, for Hopper GPUs, bfloat16 and maps of 7×7×64.

The kernels are CUDA C++ (rollout_hopper.cu). A block keeps both filters and some states on its SM for all steps, which
needs all blocks to run at the same time: a batch that does not fit the GPU, or the part of it that a process has, goes
through `rollout_triton`, as every other size and precision does. Weight gradients are one product over all steps.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: UP045
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels import hopper
from playvirtual.kernels.hopper.cuda_module import CudaModule, compiled
from playvirtual.kernels.hopper.gradients_hopper import MOST_ACTIONS, parameter_gradients

CHANNELS, SIDE = 64, 7
POSITIONS = SIDE * SIDE
FRAGMENTS = 7 * 8 * 64  # numbers of a state in the kernels' own order
SPREAD = 4  # lists of sums that blocks add to, so that fewer atomics wait for each other
# States per block -> warpgroups, states of each; what a block of more states would keep exceeds shared memory.
SHAPES = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 6: (3, 2), 8: (2, 4), 9: (3, 3)}


class Shape(NamedTuple):
    """How a batch is spread: warpgroups per block, states per warpgroup, blocks."""

    warpgroups: int
    states: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: two filters, the warpgroups' states and sums, BatchNorm's parameters."""
        row = 8 * self.states
        image = 8 * (8 * row + 1) + row + 8
        each = image * 16 + 2 * 3 * 64 * 4 + self.states * 48
        return 2 * 9 * 8 * 64 * 16 + self.warpgroups * each + 2 * 3 * 64 * 4 + 3 * 64 * 4 + 16


def shape_for(samples: int, processors: int, *, dense: bool = False) -> Optional[Shape]:
    """The fewest states per block with which `samples` fit as many SMs, or None.

    With `dense` a batch that has a state for every SM is given to as few SMs as hold it instead: it takes longer and
    less of the GPU, whose other SMs are for other processes.
    """
    fitting = [states for states in SHAPES if samples <= states * processors]
    if not fitting:
        return None
    states = fitting[-1] if dense and samples > processors else fitting[0]
    warpgroups, each = SHAPES[states]
    return Shape(warpgroups, each, -(-samples // states))


def source(warpgroups: int, states: int) -> str:
    """The kernels' source for this many warpgroups and states of each."""
    return hopper.source("rollout_hopper.cu", constants(warpgroups, states), 56 * states)


def constants(warpgroups: int, states: int) -> dict[str, int]:
    """The constants that the kernels are compiled with."""
    # With more states, registers are scarce and meetings rare.
    return {"WARPGROUPS": warpgroups, "SW": states, "SPREAD": SPREAD if states < 3 else 1}


@cache
def _module(warpgroups: int, states: int, _device: int) -> CudaModule:
    return CudaModule(compiled(source(warpgroups, states), "sm_90a"))


def _launcher(shape: Shape, device: torch.device) -> Callable[..., None]:
    """What launches the kernels on the GPU; a function of its own, so that a test can replace it."""
    return _module(shape.warpgroups, shape.states, device.index or 0).launch


@torch.compiler.assume_constant_result
def usable(device: torch.device, dtype: torch.dtype, size: tuple[int, ...], num_actions: int) -> bool:
    """Whether these kernels can roll out states of this size (N, C, H, W) there along so many different actions."""
    if device.type != "cuda" or dtype != torch.bfloat16 or size[1:] != (CHANNELS, SIDE, SIDE):
        return False
    if num_actions > MOST_ACTIONS:
        return False
    if not hopper.supported(device):
        return False
    shape = shape_for(size[0], hopper.processors(device), dense=kernels.under_mps())
    return shape is not None and _fits(shape, device.index or 0)


@cache
def _fits(shape: Shape, device: int) -> bool:
    def fits() -> bool:
        module = _module(shape.warpgroups, shape.states, device)
        names = ("rollout_forward", "rollout_backward")
        return all(module.resident(name, shape.threads, shape.shared) > 0 for name in names)

    return hopper.fits_or_warns("rollout", fits)


def _shape(samples: int, device: torch.device) -> Shape:
    shape = shape_for(samples, hopper.processors(device), dense=kernels.under_mps())
    assert shape is not None
    return shape


@torch.library.custom_op("playvirtual::persistent_rollout", mutates_args=())
def rollout(
    z: Tensor,  # (N, P, C) bfloat16
    actions: Tensor,  # (N, K) int64
    maps: Tensor,  # (|A|, P·C) float32: what constant planes add, see gradients_hopper
    w1: Tensor,  # (C, C, 3, 3)
    gamma: Tensor,  # (C,)
    beta: Tensor,  # (C,)
    w2: Tensor,  # (C, C, 3, 3)
    b2: Tensor,  # (C,)
    num_kept: int,
) -> list[Tensor]:
    """[all states of the first batch (K, num_kept, P, C), last ones of the second, what the backward pass needs …]."""
    kept, last, x1, states, lines, work, back = found = _outputs(z, actions, num_kept)
    (N, _, _), K = z.shape, actions.shape[1]
    there = torch.empty_like(back)
    shape = _shape(N, z.device)
    launch = _launcher(shape, z.device)
    strides = [stride for w in (w1, w2) for stride in (w.stride(0), w.stride(1), w.stride(3))]
    assert w1.stride(2) == 3 * w1.stride(3)
    assert w2.stride(2) == 3 * w2.stride(3)
    launch("pack_filters", 288, 256, 0, [w1, w2, there, back, *strides, work, work.numel()], cooperative=False)
    sums, lists, meta, counter = _parts(work, K, N)
    inputs = [z.contiguous(), actions.contiguous(), maps.contiguous(), there, gamma, beta, b2]
    outputs = [kept, last, x1, states, lines, sums, lists, meta, counter, N, num_kept, K]
    launch("rollout_forward", shape.blocks, shape.threads, shape.shared, [*inputs, *outputs])
    return found


def _outputs(z: Tensor, actions: Tensor, num_kept: int) -> list[Tensor]:
    (N, P, C), K = z.shape, actions.shape[1]
    return [
        z.new_empty(K, num_kept, P, C),
        z.new_empty(N - num_kept, P, C),
        z.new_empty(K, N, FRAGMENTS),  # x1, before BatchNorm
        z.new_empty(K + 1, N, FRAGMENTS),  # the states that the steps begin in, and the last ones
        z.new_empty(K, 2, 2, C, dtype=torch.float32),  # BatchNorm of either batch: what it multiplies with and adds
        z.new_empty((1 + SPREAD) * K * 4 * C + 4 * K * N + 1, dtype=torch.float32),  # see _parts
        z.new_empty(2, 9, C, C),  # filters for the way back
    ]


def _parts(work: Tensor, K: int, N: int) -> tuple[Tensor, ...]:
    """Sums of x1 and x1² (K, 2 batches, 2, C); the lists they are the sums of (SPREAD, K, 2, 2, C); each state's range,
    minimum and both places (K, N, 4); a counter."""
    parts: tuple[Tensor, ...] = work.split([K * 4 * CHANNELS, SPREAD * K * 4 * CHANNELS, 4 * K * N, 1])
    return parts


def sums_of(work: Tensor, K: int) -> Tensor:
    """Each step's sums of x1 and x1² (K, 2 batches, 2, C)."""
    return work[: K * 4 * CHANNELS].view(K, 2, 2, CHANNELS)


@rollout.register_fake
def _(z, actions, maps, w1, gamma, beta, w2, b2, num_kept):
    return _outputs(z, actions, num_kept)


@torch.library.custom_op("playvirtual::persistent_rollout_backward", mutates_args=())
def rollout_backward(
    g_kept: Optional[Tensor],  # (K, num_kept, P, C)
    g_last: Optional[Tensor],  # (N − num_kept, P, C)
    gamma: Tensor,
    x1: Tensor,
    states: Tensor,
    work: Tensor,
    back: Tensor,
    num_kept: int,
) -> list[Tensor]:
    """[dL/dz (N, P, C), dL/d outputs of both convolutions (K, N, P, C), sums of BatchNorm and bias (K, 2, 3, C)]."""
    K, N, _ = x1.shape
    dz = x1.new_empty(N, POSITIONS, CHANNELS)
    dx, du = x1.new_empty(K, N, POSITIONS, CHANNELS), x1.new_empty(K, N, POSITIONS, CHANNELS)
    dsums = torch.zeros(SPREAD * K * 6 * CHANNELS + 1, device=x1.device)
    totals = torch.empty(K, 2, 3, CHANNELS, device=x1.device)
    fragments = x1.new_empty((K - 1) * num_kept, FRAGMENTS)  # of g_kept
    sums, _, meta, _ = _parts(work, K, N)
    shape = _shape(N, x1.device)
    given = [None if g is None or not g.numel() else g.contiguous() for g in (g_kept, g_last)]
    inputs = [*given, gamma, back, x1, states, sums, meta]
    arguments = [*inputs, du, dx, dz, dsums, totals, fragments, dsums[-1:], N, num_kept, K]
    launch = _launcher(shape, x1.device)
    launch("rollout_backward", shape.blocks, shape.threads, shape.shared, arguments)
    return [dz, dx, du, totals]


@rollout_backward.register_fake
def _(g_kept, g_last, gamma, x1, states, work, back, num_kept):
    K, N, _ = x1.shape
    maps = [x1.new_empty(*size, POSITIONS, CHANNELS) for size in ((N,), (K, N), (K, N))]
    return [*maps, x1.new_empty(K, 2, 3, CHANNELS, dtype=torch.float32)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, actions, maps, w1, gamma, _, w2, _, num_kept = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(actions, maps, w1, gamma, w2, *output[2:])
    ctx.num_kept = num_kept


def _backward(ctx: Any, grads: list[Optional[Tensor]]) -> tuple[Any, ...]:
    actions, maps, w1, gamma, w2, x1, states, lines, work, back = ctx.saved_tensors
    dz, dx, du, totals = rollout_backward(grads[0], grads[1], gamma, x1, states, work, back, ctx.num_kept)
    if not any(ctx.needs_input_grad[2:]):  # those of a model that does not learn
        return dz, *[None] * 8
    given = (actions, maps, w1, w2, states, x1, lines, dx, du, totals)
    dmaps, dw1, dw2, (dbeta, dgamma, db2) = parameter_gradients(*given, ctx.num_kept)
    return dz, None, dmaps, dw1, dgamma, dbeta, dw2, db2, None


rollout.register_autograd(_backward, setup_context=_save)
