"""Convolution, bias and ReLU as one Triton kernel over channels-last images, with PyTorch's own gradients."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from playvirtual.method import kernels


@triton.jit
def _conv_relu(x, w, b, y, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
               CI: tl.constexpr, CO: tl.constexpr, R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr,
               BM: tl.constexpr, BK: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """y (N, HO, WO, CO) = relu(x (N, H, W, CI) * w (R, CO, S·CI) + b); a tile is BM pixels of the output."""
    RUN: tl.constexpr = S * CI  # what a filter's row covers lies side by side in a row of the image
    CHUNKS: tl.constexpr = (RUN + BK - 1) // BK
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    real = m < rows
    n, pixel = m // (HO * WO), m % (HO * WO)
    start = ((n * H + pixel // WO * STRIDE) * W + pixel % WO * STRIDE) * CI
    k, o = tl.arange(0, BK), tl.arange(0, CO)
    acc = tl.zeros((BM, CO), tl.float32)
    for i in tl.range(R * CHUNKS, num_stages=STAGES):
        r, at = i // CHUNKS, i % CHUNKS * BK + k
        inside = at < RUN
        a = tl.load(x + start[:, None] + (r * W * CI + at)[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        # What is added up over lies side by side: tensor cores take 32-bit numbers in that order only.
        t = tl.load(w + (r * CO + o)[None, :] * RUN + at[:, None], mask=inside[:, None], other=0.0)
        acc = tl.dot(a, t, acc, input_precision=IP)
    acc = tl.maximum(acc + tl.load(b + o)[None, :], 0.0)
    tl.store(y + m[:, None] * CO + o[None, :], acc.to(y.dtype.element_ty), mask=real[:, None])


@triton.jit
def _relu_back(g, y, out, sums, rows, ROUNDS: tl.constexpr, CO: tl.constexpr, BM: tl.constexpr):
    """out = g where y > 0, else 0; adds it up over all rows into `sums` (CO,)."""
    o = tl.arange(0, CO)
    total = tl.zeros((BM, CO), tl.float32)
    for i in tl.range(ROUNDS):
        m = (i * tl.num_programs(0) + tl.program_id(0)) * BM + tl.arange(0, BM)
        at, real = m[:, None] * CO + o[None, :], (m < rows)[:, None]
        value = tl.load(g + at, mask=real, other=0.0)
        value = tl.where(tl.load(y + at, mask=real, other=0.0) > 0.0, value, 0.0)
        tl.store(out + at, value, mask=real)
        total += value.to(tl.float32)
    tl.atomic_add(sums + o, tl.sum(total, 0))


def _tiles(dtype: torch.dtype, channels: int, side: int) -> dict[str, Any]:
    """The sizes that were fastest on an H200; in fp32 such that they fit smaller cards' shared memory."""
    precision = kernels.tensor_core_precision(dtype)
    deep = channels >= 64 and dtype != torch.float32
    depth = 64 if deep else 16 if side * channels % 32 else 32
    return {"BM": 128, "BK": depth, "num_warps": 4, "IP": precision, "STAGES": 3}


@torch.library.custom_op("playvirtual::conv_relu", mutates_args=())
def _forward(x: Tensor, w: Tensor, b: Tensor, side: int, stride: int) -> Tensor:
    """x (N, H, W, CI), w (side, CO, side·CI) of x's type, b (CO,) -> (N, HO, WO, CO)."""
    N, H, W, CI = x.shape
    HO, WO, CO = (H - side) // stride + 1, (W - side) // stride + 1, w.shape[1]
    y = x.new_empty(N, HO, WO, CO)
    rows, tiles = N * HO * WO, _tiles(x.dtype, CI, side)
    _conv_relu[(triton.cdiv(rows, tiles["BM"]),)](
        x, w, b, y, rows, H=H, W=W, HO=HO, WO=WO, CI=CI, CO=CO, R=side, S=side, STRIDE=stride, **tiles
    )
    return y


@_forward.register_fake
def _(x, w, b, side, stride):
    N, H, W, _ = x.shape
    return x.new_empty(N, (H - side) // stride + 1, (W - side) // stride + 1, w.shape[1])


@torch.library.custom_op("playvirtual::relu_back", mutates_args=())
def _through_relu(gradient: Tensor, y: Tensor) -> list[Tensor]:
    """[the gradient of ReLU's input (N, HO, WO, CO), the bias' gradient (CO,)], in one pass."""
    g, channels = gradient.contiguous(), y.shape[-1]
    out, sums = torch.empty_like(g), torch.zeros(channels, device=y.device)
    rows, tile = y.numel() // channels, 4096 // channels
    tiles = triton.cdiv(rows, tile)
    programs = min(tiles, 1024)  # enough for every GPU, few enough for the sums
    _relu_back[(programs,)](g, y, out, sums, rows, ROUNDS=triton.cdiv(tiles, programs), CO=channels, BM=tile)
    return [out, sums]


@_through_relu.register_fake
def _(gradient, y):
    return [torch.empty(y.shape, dtype=gradient.dtype, device=y.device), y.new_empty(y.shape[-1], dtype=torch.float32)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, b, side, stride = inputs
    ctx.save_for_backward(x, w, b, output)
    ctx.side, ctx.stride = side, stride


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, b, y = ctx.saved_tensors
    side, stride = ctx.side, ctx.stride
    g, db = _through_relu(gradient, y)
    filters = w.unflatten(2, (side, x.shape[-1])).permute(1, 3, 0, 2)  # (CO, CI, R, S)
    images = [t.permute(0, 3, 1, 2) for t in (g, x)]
    mask = [ctx.needs_input_grad[0], True, False]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        *images, filters, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, mask
    )
    dw = dw.permute(2, 0, 3, 1).flatten(2)
    return dx.permute(0, 2, 3, 1) if mask[0] else None, dw, db.to(b.dtype), None, None


_forward.register_autograd(_backward, setup_context=_save)


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """relu(conv2d(x, weight, bias, stride)) of (N, CI, H, W) images, channels last; weight (CO, CI, side, side)."""
    taps = weight.permute(2, 0, 3, 1).flatten(2).to(x.dtype).contiguous()  # (R, CO, S·CI)
    y: Tensor = _forward(x.permute(0, 2, 3, 1).contiguous(), taps, bias.float(), weight.shape[2], stride)
    return y.permute(0, 3, 1, 2)
