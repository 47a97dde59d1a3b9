"""Rollouts of the convolutional dynamics by Triton: one launch per step, two per step back, one operator.

They compute what `rollout.step` computes. A state is a small map, so one program holds one sample's whole map, and only
BatchNorm's sums over the batch need all programs to have ended. A launch therefore goes from one such sum to the next:
- forward:  BatchNorm, conv2, ReLU, rescaling of one step, then conv1, action map, ReLU and the sums of the next
- backward: rescaling′, ReLU′, conv2ᵀ and the sums of one step | BatchNorm′, ReLU′, conv1ᵀ (together they were slower)
States are stored as (N, positions, channels). The first `num_kept` samples and the others are two batches that share
the launches, each with its own sums. Weight gradients are one product over all steps together.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: UP045
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from playvirtual import kernels

BN_EPS = 1e-5
RANGE_EPS = 1e-6


@triton.jit
def _tile(P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr):
    """The program's sample: which rows of its tile are positions, and where its numbers lie, (BP, C) each."""
    p, c = tl.arange(0, BP), tl.arange(0, C)
    return (p < P)[:, None], (tl.program_id(0) * P + p)[:, None] * C + c[None, :]


@triton.jit
def _convolve(x, w, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr, IP: tl.constexpr,
              STAGES: tl.constexpr):  # fmt: skip
    """A 3×3 convolution with zeros around the map: x (N, P, C) by w (9, outputs, inputs) -> (BP, C)."""
    p, c = tl.arange(0, BP), tl.arange(0, C)
    row, col = p // W, p % W
    up, down, left, right = row > 0, (row + 1) * W < P, col > 0, col < W - 1
    # Bit number `tap` of a position says whether the neighbour there lies inside the map.
    middle = 0b000010000 + left * 0b000001000 + right * 0b000100000
    top = 0b000000010 + left * 0b000000001 + right * 0b000000100
    inside = tl.where(p < P, middle + up * top + down * top * 64, 0)
    here = x + (tl.program_id(0) * P + p)[:, None] * C + c[None, :]
    filters = w + c[None, :] * C + c[:, None]
    acc = tl.zeros((BP, C), tl.float32)
    for tap in tl.range(9, num_stages=STAGES):
        ok = ((inside >> tap) & 1) != 0
        a = tl.load(here + ((tap // 3 - 1) * W + tap % 3 - 1) * C, mask=ok[:, None], other=0.0)
        acc = tl.dot(a, tl.load(filters + tap * C * C), acc, input_precision=IP)
    return acc


@triton.jit
def _group(num_kept, P: tl.constexpr):
    """Which of the two batches the program's sample belongs to, and how many numbers a channel has there."""
    second = tl.program_id(0) >= num_kept
    samples = tl.where(second, tl.num_programs(0) - num_kept, num_kept)
    return second.to(tl.int32), (samples * P).to(tl.float32)


@triton.jit
def _moments(sums, c, count, C: tl.constexpr, eps: tl.constexpr):
    mean = tl.load(sums + c) / count
    var = tl.maximum(tl.load(sums + C + c) / count - mean * mean, 0.0)
    return mean, 1.0 / tl.sqrt(var + eps)


@triton.jit
def pack(w1, w2, taps, flipped, s_out, s_in, s_tap, t_out, t_in, t_tap, C: tl.constexpr):
    """Both filters (out, in, 3, 3) as (2, 9, out, in) and, flipped for the backward pass, as (2, 9, in, out).

    The dimension that a product sums over is contiguous: tensor cores take 32-bit numbers in that order only.
    """
    tap, which = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, C)
    if which == 0:
        w = tl.load(w1 + tap * s_tap + c[:, None] * s_in + c[None, :] * s_out)
    else:
        w = tl.load(w2 + tap * t_tap + c[:, None] * t_in + c[None, :] * t_out)
    w = w.to(taps.dtype.element_ty)
    tl.store(taps + (which * 9 + tap) * C * C + c[None, :] * C + c[:, None], w)
    tl.store(flipped + (which * 9 + 8 - tap) * C * C + c[:, None] * C + c[None, :], w)


@triton.jit
def _first_half(z, w1, maps, actions, x1, sums, num_kept, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr,
                W: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """x1 = relu(conv1(z) + maps[action]); adds x1 and x1² to its batch's part of `sums` (2, 2, C)."""
    inside, here = _tile(P, BP, C)
    group, _ = _group(num_kept, P)
    p, c = tl.arange(0, BP), tl.arange(0, C)
    acc = _convolve(z, w1, P, BP, C, W, IP, STAGES)
    action = tl.load(actions + tl.program_id(0))
    acc += tl.load(maps + (action * P + p)[:, None] * C + c[None, :], mask=inside, other=0.0)
    x = tl.where(inside, tl.maximum(acc, 0.0), 0.0).to(x1.dtype.element_ty)
    tl.store(x1 + here, x, mask=inside)
    x = x.to(tl.float32)
    tl.atomic_add(sums + group * 2 * C + c, tl.sum(x, 0))
    tl.atomic_add(sums + group * 2 * C + C + c, tl.sum(x * x, 0))


@triton.jit
def _second_half(x1, sums, gamma, beta, w2, b2, y, out, ranges, places, num_kept, bn_eps: tl.constexpr,
                 range_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
                 IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """y = BatchNorm(x1), u = relu(conv2(y)), out = u rescaled to [0, 1]; remembers range, minimum and their places."""
    inside, here = _tile(P, BP, C)
    n, p, c = tl.program_id(0), tl.arange(0, BP), tl.arange(0, C)
    group, count = _group(num_kept, P)
    mean, rstd = _moments(sums + group * 2 * C, c, count, C, bn_eps)
    scale = tl.load(gamma + c) * rstd
    offset = tl.load(beta + c) - mean * scale
    normed = tl.load(x1 + here, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + offset[None, :]
    tl.store(y + here, normed.to(y.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # a map's neighbours belong to this same program: once written they can be read back
    u = tl.maximum(_convolve(y, w2, P, BP, C, W, IP, STAGES) + tl.load(b2 + c)[None, :], 0.0)
    top = tl.max(tl.max(tl.where(inside, u, float("-inf")), 1), 0)
    bottom = tl.min(tl.min(tl.where(inside, u, float("inf")), 1), 0)
    spread = tl.maximum(top - bottom, range_eps)
    # The first place of either, by comparison: an argmax over a reshaped tile was wrong on a GPU.
    flat = p[:, None] * C + c[None, :]
    tl.store(places + 2 * n, tl.min(tl.min(tl.where(inside & (u == top), flat, BP * C), 1), 0))
    tl.store(places + 2 * n + 1, tl.min(tl.min(tl.where(inside & (u == bottom), flat, BP * C), 1), 0))
    tl.store(ranges + 2 * n, spread)
    tl.store(ranges + 2 * n + 1, bottom)
    tl.store(out + here, ((u - bottom) / spread).to(out.dtype.element_ty), mask=inside)


@triton.jit
def begin(z, w1, maps, actions, x1, sums, num_kept, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
           IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The first half of the first step."""
    _first_half(z, w1, maps, actions, x1, sums, num_kept, P, BP, C, W, IP, STAGES)


@triton.jit
def step(x1, sums, gamma, beta, w2, b2, y, out, ranges, places, num_kept, w1, maps, actions, next_x1, next_sums,
          LAST: tl.constexpr, bn_eps: tl.constexpr, range_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr,
          C: tl.constexpr, W: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The second half of one step and, but for the last, the first half of the next."""
    _second_half(
        x1, sums, gamma, beta, w2, b2, y, out, ranges, places, num_kept, bn_eps, range_eps, P, BP, C, W, IP, STAGES
    )
    if not LAST:
        tl.debug_barrier()
        _first_half(out, w1, maps, actions, next_x1, next_sums, num_kept, P, BP, C, W, IP, STAGES)


@triton.jit
def second_half_backward(g, g_kept, g_last, z, ranges, places, w2, x1, sums, du, dy, dsums, num_kept,
                 WHOLE: tl.constexpr, KEPT: tl.constexpr, LAST: tl.constexpr, bn_eps: tl.constexpr,
                 range_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
                 IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The way back through the second half of a step, z = (relu(v) − min) / (max − min): du = dL/dv, dy = conv2ᵀ(du).

    dL/dz is g (N, P, C) if that is the WHOLE, else `g_kept` for the first batch and `g_last` for the second. Adds
    dy, dy·x̂ and du to its batch's part of `dsums` (2, 3, C).
    """
    inside, here = _tile(P, BP, C)
    n = tl.program_id(0)
    gz = tl.zeros((BP, C), tl.float32)
    if WHOLE:
        gz += tl.load(g + here, mask=inside, other=0.0).to(tl.float32)
    if KEPT:
        gz += tl.load(g_kept + here, mask=inside & (here < num_kept * P * C), other=0.0).to(tl.float32)
    if LAST:
        others = inside & (here >= num_kept * P * C)
        gz += tl.load(g_last + here - num_kept * P * C, mask=others, other=0.0).to(tl.float32)
    p, c = tl.arange(0, BP), tl.arange(0, C)
    zv = tl.load(z + here, mask=inside, other=0.0).to(tl.float32)
    spread, bottom = tl.load(ranges + 2 * n), tl.load(ranges + 2 * n + 1)
    top_at, bottom_at = tl.load(places + 2 * n), tl.load(places + 2 * n + 1)
    flat = p[:, None] * C + c[None, :]
    total = tl.sum(tl.sum(gz, 1), 0)
    # A range at its guard does not depend on max and min.
    moved = tl.where(spread > range_eps, tl.sum(tl.sum(gz * zv, 1), 0), 0.0)
    gz += tl.where(flat == top_at, -moved, 0.0) + tl.where(flat == bottom_at, moved - total, 0.0)
    gv = tl.where(inside & (zv + bottom > 0.0), gz / spread, 0.0).to(du.dtype.element_ty)
    tl.store(du + here, gv, mask=inside)
    tl.debug_barrier()
    value = tl.where(inside, _convolve(du, w2, P, BP, C, W, IP, STAGES), 0.0).to(dy.dtype.element_ty)
    tl.store(dy + here, value, mask=inside)
    group, count = _group(num_kept, P)
    mean, rstd = _moments(sums + group * 2 * C, c, count, C, bn_eps)
    hat = (tl.load(x1 + here, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    value = value.to(tl.float32)
    tl.atomic_add(dsums + group * 3 * C + c, tl.sum(value, 0))
    tl.atomic_add(dsums + group * 3 * C + C + c, tl.sum(value * hat, 0))
    tl.atomic_add(dsums + group * 3 * C + 2 * C + c, tl.sum(gv.to(tl.float32), 0))


@triton.jit
def first_half_backward(dy, x1, sums, dsums, gamma, w1, dx, g_kept, dz, num_kept, KEPT: tl.constexpr,
                bn_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
                IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The way back through the first half of a step: dx = dL/d(conv1's output), dz = conv1ᵀ(dx) + `g_kept`."""
    inside, here = _tile(P, BP, C)
    c = tl.arange(0, C)
    group, count = _group(num_kept, P)
    mean, rstd = _moments(sums + group * 2 * C, c, count, C, bn_eps)
    scale = tl.load(gamma + c) * rstd
    # scale · (dy − mean(dy) − x̂ · mean(dy·x̂)) as one line in dy and x1, per channel.
    slope = -scale * rstd * tl.load(dsums + group * 3 * C + C + c) / count
    offset = -scale * tl.load(dsums + group * 3 * C + c) / count - slope * mean
    d = tl.load(dy + here, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x1 + here, mask=inside, other=0.0).to(tl.float32)
    d = tl.where(x > 0.0, scale[None, :] * d + slope[None, :] * x + offset[None, :], 0.0)
    tl.store(dx + here, d.to(dx.dtype.element_ty), mask=inside)
    tl.debug_barrier()
    acc = _convolve(dx, w1, P, BP, C, W, IP, STAGES)
    if KEPT:
        acc += tl.load(g_kept + here, mask=inside & (here < num_kept * P * C), other=0.0).to(tl.float32)
    tl.store(dz + here, acc.to(dz.dtype.element_ty), mask=inside)


def launch_settings(channels: int, height: int, width: int) -> dict[str, Any]:
    """How the kernels are launched for maps of this size."""
    positions = height * width
    rows = max(16, triton.next_power_of_2(positions))
    return {"P": positions, "BP": rows, "C": channels, "W": width, "num_warps": 4}


def product_settings(dtype: torch.dtype) -> dict[str, Any]:
    """How convolutions are computed: the precision of products, and how many loads are in flight."""
    return {"IP": kernels.tensor_core_precision(dtype), "STAGES": 2 if dtype == torch.float32 else 3}


def _packed(w1: Tensor, w2: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both filters in the kernels' order: (2, 9, out, in), and flipped (2, 9, in, out)."""
    channels = w1.shape[0]
    taps = torch.empty(2, 9, channels, channels, dtype=dtype, device=w1.device)
    flipped = torch.empty_like(taps)
    strides = [stride for w in (w1, w2) for stride in (w.stride(0), w.stride(1), w.stride(3))]
    assert w1.stride(2) == 3 * w1.stride(3)
    assert w2.stride(2) == 3 * w2.stride(3)
    pack[(9, 2)](w1, w2, taps, flipped, *strides, C=channels)
    return taps, flipped


@torch.library.custom_op("playvirtual::rollout", mutates_args=())
def rollout(
    z: Tensor,  # (N, P, C)
    actions: Tensor,  # (N, K) int64
    maps: Tensor,  # (|A|, P·C) float32
    w1: Tensor,  # (C, C, 3, 3)
    gamma: Tensor,  # (C,)
    beta: Tensor,  # (C,)
    w2: Tensor,  # (C, C, 3, 3)
    b2: Tensor,  # (C,)
    num_kept: int,
    height: int,
    width: int,
) -> list[Tensor]:
    """[all states of the first batch (K, num_kept, P, C), last ones of the second, what the backward pass needs …]."""
    (N, P, C), K = z.shape, actions.shape[1]
    states = z.new_empty(K + 1, N, P, C)
    states[0].copy_(z)
    x1, y = z.new_empty(K, N, P, C), z.new_empty(K, N, P, C)
    sums = torch.zeros(K, 2, 2, C, device=z.device)
    ranges = torch.empty(K, N, 2, device=z.device)
    places = torch.empty(K, N, 2, device=z.device, dtype=torch.int32)
    taps, flipped = _packed(w1, w2, z.dtype)
    steps, eps = actions.t().contiguous(), {"bn_eps": BN_EPS, "range_eps": RANGE_EPS}
    s = launch_settings(C, height, width) | product_settings(z.dtype)
    begin[(N,)](states[0], taps[0], maps, steps[0], x1[0], sums[0], num_kept, **s)
    for k in range(K):
        after = min(k + 1, K - 1)  # after the last step the arguments that describe the next are not read
        step[(N,)](
            x1[k], sums[k], gamma, beta, taps[1], b2, y[k], states[k + 1], ranges[k], places[k], num_kept,
            taps[0], maps, steps[after], x1[after], sums[after], LAST=k == K - 1, **eps, **s,
        )  # fmt: skip
    return [states[1:, :num_kept].clone(), states[-1, num_kept:].clone(), states, x1, y, sums, ranges, places, flipped]


@rollout.register_fake
def _(z, actions, maps, w1, gamma, beta, w2, b2, num_kept, height, width):
    (N, P, C), K = z.shape, actions.shape[1]
    return [
        z.new_empty(K, num_kept, P, C),
        z.new_empty(N - num_kept, P, C),
        z.new_empty(K + 1, N, P, C),
        z.new_empty(K, N, P, C),
        z.new_empty(K, N, P, C),
        z.new_empty(K, 2, 2, C, dtype=torch.float32),
        z.new_empty(K, N, 2, dtype=torch.float32),
        z.new_empty(K, N, 2, dtype=torch.int32),
        z.new_empty(2, 9, C, C),
    ]


@torch.library.custom_op("playvirtual::rollout_backward", mutates_args=())
def rollout_backward(
    g_kept: Optional[Tensor],  # (K, num_kept, P, C)
    g_last: Optional[Tensor],  # (N − num_kept, P, C)
    gamma: Tensor,
    states: Tensor,
    x1: Tensor,
    sums: Tensor,
    ranges: Tensor,
    places: Tensor,
    flipped: Tensor,
    num_kept: int,
    height: int,
    width: int,
) -> list[Tensor]:
    """[dL/dz (N, P, C), dL/d outputs of both convolutions (K, N, P, C), sums of BatchNorm and bias (K, 2, 3, C)]."""
    K, N, _, C = x1.shape
    du, dx, dy = torch.empty_like(x1), torch.empty_like(x1), torch.empty_like(x1[0])
    dz, dsums = torch.empty_like(x1[0]), torch.zeros(K, 2, 3, C, device=x1.device)
    eps: dict[str, Any] = {"bn_eps": BN_EPS}
    s = launch_settings(C, height, width) | product_settings(x1.dtype)
    # Four programs instead of three fit an SM so, at the price of four spilled registers.
    registers = {"maxnreg": 128} if x1.dtype == torch.bfloat16 and C <= 64 else {}
    kept = None if g_kept is None else g_kept.contiguous()
    last = None if g_last is None else g_last.contiguous()
    for k in reversed(range(K)):
        final = k == K - 1
        second_half_backward[(N,)](
            dz, dz if kept is None else kept[k], dz if last is None else last, states[k + 1], ranges[k], places[k],
            flipped[1], x1[k], sums[k], du[k], dy, dsums[k], num_kept, WHOLE=not final,
            KEPT=final and kept is not None, LAST=final and last is not None, range_eps=RANGE_EPS, **eps, **s,
            **registers,
        )  # fmt: skip
        first_half_backward[(N,)](
            dy, x1[k], sums[k], dsums[k], gamma, flipped[0], dx[k], dz if kept is None else kept[max(k - 1, 0)], dz,
            num_kept, KEPT=k > 0 and kept is not None, **eps, **s,
        )  # fmt: skip
    return [dz, dx, du, dsums]


@rollout_backward.register_fake
def _(g_kept, g_last, gamma, states, x1, sums, ranges, places, flipped, num_kept, height, width):
    K, _, _, C = x1.shape
    sums = x1.new_empty(K, 2, 3, C, dtype=torch.float32)
    return [torch.empty_like(x1[0]), torch.empty_like(x1), torch.empty_like(x1), sums]


def parameter_gradients(
    actions: Tensor,  # (N, K)
    maps: Tensor,  # (|A|, P·C)
    w1: Tensor,
    w2: Tensor,
    states: Tensor,  # (K, N, P, C): what the first convolution was given
    y: Tensor,  # (K, N, P, C): what the second was
    dx: Tensor,  # (K, N, P, C): dL/d outputs of the first
    du: Tensor,  # (K, N, P, C): of the second
    dsums: Tensor,  # (K, 2 batches, 3, C): sums of dL/dy, of it times x̂, and of du
    height: int,
    width: int,
) -> tuple[Tensor, ...]:
    """Gradients of maps, w1, gamma, beta, w2 and b2: products over all steps together."""
    number = torch.arange(maps.shape[0], device=maps.device)[:, None]
    chosen = (number == actions.t().reshape(1, -1)).to(dx.dtype)  # (|A|, K·N)
    dmaps = (chosen @ dx.flatten(0, 1).flatten(1)).to(maps.dtype)
    dbeta, dgamma, db2 = dsums.sum((0, 1))
    dw1 = _weight_gradient(states, dx, w1, height, width)
    dw2 = _weight_gradient(y, du, w2, height, width)
    return dmaps, dw1, dgamma, dbeta, dw2, db2


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
    _, actions, maps, w1, gamma, _, w2, _, num_kept, height, width = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(actions, maps, w1, gamma, w2, *output[2:])
    ctx.num_kept, ctx.size = num_kept, (height, width)


def _backward(ctx: Any, grads: list[Optional[Tensor]]) -> tuple[Any, ...]:
    actions, maps, w1, gamma, w2, states, x1, y, sums, ranges, places, flipped = ctx.saved_tensors
    dz, dx, du, dsums = rollout_backward(
        grads[0], grads[1], gamma, states, x1, sums, ranges, places, flipped, ctx.num_kept, *ctx.size
    )
    found = parameter_gradients(actions, maps, w1, w2, states[:-1], y, dx, du, dsums, *ctx.size)
    return dz, None, *found, None, None, None


rollout.register_autograd(_backward, setup_context=_save)
