"""Rollouts of the convolutional dynamics as one differentiable operator over the Triton kernels.

Weight gradients are taken once over all steps together.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: UP045
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from typing import Any, Optional

import torch
import triton
from torch import Tensor

from playvirtual.method import kernels, rollout_kernels

BN_EPS = 1e-5
RANGE_EPS = 1e-6


def _settings(channels: int, height: int, width: int) -> dict[str, Any]:
    """How the kernels are launched for maps of this size."""
    positions = height * width
    rows = max(16, triton.next_power_of_2(positions))
    return {"P": positions, "BP": rows, "C": channels, "W": width, "num_warps": 4}


def _products(dtype: torch.dtype) -> dict[str, Any]:
    """How convolutions are taken: the precision of products, how many loads are under way at a time."""
    return {"IP": kernels.tensor_core_precision(dtype), "STAGES": 2 if dtype == torch.float32 else 3}


def _packed(w1: Tensor, w2: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both filters in the kernels' order: (2, 9, out, in), and mirrored (2, 9, in, out)."""
    channels = w1.shape[0]
    taps = torch.empty(2, 9, channels, channels, dtype=dtype, device=w1.device)
    flipped = torch.empty_like(taps)
    strides = [stride for w in (w1, w2) for stride in (w.stride(0), w.stride(1), w.stride(3))]
    assert w1.stride(2) == 3 * w1.stride(3)
    assert w2.stride(2) == 3 * w2.stride(3)
    rollout_kernels.pack[(9, 2)](w1, w2, taps, flipped, *strides, C=channels)
    return taps, flipped


@torch.library.custom_op("playvirtual::rollout", mutates_args=())
def _rollout(
    z: Tensor,  # (N, P, C)
    actions: Tensor,  # (N, K) int64
    maps: Tensor,  # (|A|, P·C) float32
    w1: Tensor,  # (C, C, 3, 3)
    gamma: Tensor,  # (C,)
    beta: Tensor,  # (C,)
    w2: Tensor,  # (C, C, 3, 3)
    b2: Tensor,  # (C,)
    first: int,
    height: int,
    width: int,
) -> list[Tensor]:
    """[states of the first batch (K, first, P, C), last ones of the second (N − first, P, C), for the way back …]."""
    (N, P, C), K = z.shape, actions.shape[1]
    states = z.new_empty(K + 1, N, P, C)
    states[0].copy_(z)
    x1, y = z.new_empty(K, N, P, C), z.new_empty(K, N, P, C)
    sums = torch.zeros(K, 2, 2, C, device=z.device)
    ranges = torch.empty(K, N, 2, device=z.device)
    places = torch.empty(K, N, 2, device=z.device, dtype=torch.int32)
    taps, flipped = _packed(w1, w2, z.dtype)
    steps, eps = actions.t().contiguous(), {"bn_eps": BN_EPS, "range_eps": RANGE_EPS}
    s = _settings(C, height, width) | _products(z.dtype)
    rollout_kernels.begin[(N,)](states[0], taps[0], maps, steps[0], x1[0], sums[0], first, **s)
    for k in range(K):
        after = min(k + 1, K - 1)  # after the last step the arguments that describe the next are not read
        rollout_kernels.step[(N,)](
            x1[k], sums[k], gamma, beta, taps[1], b2, y[k], states[k + 1], ranges[k], places[k], first,
            taps[0], maps, steps[after], x1[after], sums[after], LAST=k == K - 1, **eps, **s,
        )  # fmt: skip
    return [states[1:, :first].clone(), states[-1, first:].clone(), states, x1, y, sums, ranges, places, flipped]


@_rollout.register_fake
def _(z, actions, maps, w1, gamma, beta, w2, b2, first, height, width):
    (N, P, C), K = z.shape, actions.shape[1]
    return [
        z.new_empty(K, first, P, C),
        z.new_empty(N - first, P, C),
        z.new_empty(K + 1, N, P, C),
        z.new_empty(K, N, P, C),
        z.new_empty(K, N, P, C),
        z.new_empty(K, 2, 2, C, dtype=torch.float32),
        z.new_empty(K, N, 2, dtype=torch.float32),
        z.new_empty(K, N, 2, dtype=torch.int32),
        z.new_empty(2, 9, C, C),
    ]


@torch.library.custom_op("playvirtual::rollout_backward", mutates_args=())
def _rollout_backward(
    g_ahead: Optional[Tensor],  # (K, first, P, C)
    g_last: Optional[Tensor],  # (N − first, P, C)
    gamma: Tensor,
    states: Tensor,
    x1: Tensor,
    sums: Tensor,
    ranges: Tensor,
    places: Tensor,
    flipped: Tensor,
    first: int,
    height: int,
    width: int,
) -> list[Tensor]:
    """[dL/dz (N, P, C), dL/d outputs of both convolutions (K, N, P, C), sums of BatchNorm and bias (K, 2, 3, C)]."""
    K, N, _, C = x1.shape
    du, dx, dy = torch.empty_like(x1), torch.empty_like(x1), torch.empty_like(x1[0])
    dz, dsums = torch.empty_like(x1[0]), torch.zeros(K, 2, 3, C, device=x1.device)
    eps: dict[str, Any] = {"bn_eps": BN_EPS}
    s = _settings(C, height, width) | _products(x1.dtype)
    # Four programs instead of three fit an SM so, at the price of four spilled registers.
    registers = {"maxnreg": 128} if x1.dtype == torch.bfloat16 and C <= 64 else {}
    ahead = None if g_ahead is None else g_ahead.contiguous()
    last = None if g_last is None else g_last.contiguous()
    for k in reversed(range(K)):
        final = k == K - 1
        rollout_kernels.second_back[(N,)](
            dz, dz if ahead is None else ahead[k], dz if last is None else last, states[k + 1], ranges[k], places[k],
            flipped[1], x1[k], sums[k], du[k], dy, dsums[k], first, WHOLE=not final,
            AHEAD=final and ahead is not None, LAST=final and last is not None, range_eps=RANGE_EPS, **eps, **s,
            **registers,
        )  # fmt: skip
        rollout_kernels.first_back[(N,)](
            dy, x1[k], sums[k], dsums[k], gamma, flipped[0], dx[k], dz if ahead is None else ahead[max(k - 1, 0)], dz,
            first, AHEAD=k > 0 and ahead is not None, **eps, **s,
        )  # fmt: skip
    return [dz, dx, du, dsums]


@_rollout_backward.register_fake
def _(g_ahead, g_last, gamma, states, x1, sums, ranges, places, flipped, first, height, width):
    K, _, _, C = x1.shape
    sums = x1.new_empty(K, 2, 3, C, dtype=torch.float32)
    return [torch.empty_like(x1[0]), torch.empty_like(x1), torch.empty_like(x1), sums]


def _weight_gradient(inputs: Tensor, gradient: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """One product over all steps: (K, N, P, C) inputs and output gradients -> a gradient like `weight`."""
    images = [
        t.reshape(-1, height, width, t.shape[-1]).permute(0, 3, 1, 2) for t in (gradient, inputs)
    ]  # channels last
    mask = [False, True, False]
    ones, none = [1, 1], [0, 0]
    like = weight.detach().to(inputs.dtype)
    found = torch.ops.aten.convolution_backward(*images, like, None, ones, ones, ones, False, none, 1, mask)
    result: Tensor = found[1].float()
    return result


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, actions, maps, w1, gamma, _, w2, _, first, height, width = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(actions, maps, w1, gamma, w2, *output[2:])
    ctx.first, ctx.size = first, (height, width)


def _backward(ctx: Any, grads: list[Optional[Tensor]]) -> tuple[Any, ...]:
    actions, maps, w1, gamma, w2, states, x1, y, sums, ranges, places, flipped = ctx.saved_tensors
    dz, dx, du, dsums = _rollout_backward(
        grads[0], grads[1], gamma, states, x1, sums, ranges, places, flipped, ctx.first, *ctx.size
    )
    number = torch.arange(maps.shape[0], device=maps.device)[:, None]
    chosen = (number == actions.t().reshape(1, -1)).to(dx.dtype)  # (|A|, K·N)
    dmaps = (chosen @ dx.flatten(0, 1).flatten(1)).to(maps.dtype)
    dbeta, dgamma, db2 = dsums.sum((0, 1))
    dw1 = _weight_gradient(states[:-1], dx, w1, *ctx.size)
    dw2 = _weight_gradient(y, du, w2, *ctx.size)
    return dz, None, dmaps, dw1, dgamma, dbeta, dw2, db2, None, None, None


_rollout.register_autograd(_backward, setup_context=_save)


def rollout(
    z: Tensor,
    actions: Tensor,
    maps: Tensor,
    w1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    first: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """K steps of `ConvDynamics` from z (N, C, H, W) along actions (N, K); maps (|A|, H·W·C) and weights as there.

    The first `first` samples and the others are two batches, each with its own BatchNorm. Returns all states of the
    first batch (K, first, C, H, W), the last ones of the second (N − first, C, H, W), and each step's sums of x1 and
    x1² (K, 2 batches, 2, C).
    """
    height, width = z.shape[2:]
    flat = z.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
    found = _rollout(flat, actions, maps.contiguous(), w1, gamma, beta, w2, b2, first, height, width)
    ahead, last, sums = found[0], found[1], found[5]
    ahead = ahead.unflatten(2, (height, width)).permute(0, 1, 4, 2, 3)
    return ahead, last.unflatten(1, (height, width)).permute(0, 3, 1, 2), sums
