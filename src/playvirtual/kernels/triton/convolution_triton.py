"""Convolution, bias and ReLU as one kernel over channels-last images, with PyTorch's own gradients."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels.space_to_depth import depth_channels, depth_to_space, space_to_depth

LARGE = 2**18  # pixels of output from which on cuDNN is asked


@triton.jit
def conv_relu_kernel(x, w, b, y, rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
               CI: tl.constexpr, CO: tl.constexpr, R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr,
               BM: tl.constexpr, BK: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """y (N, HO, WO, CO) = relu(x (N, H, W, CI) * w (CO, R, S, CI) + b); a tile is BM pixels of the output."""
    RUN: tl.constexpr = S * CI  # what a filter's row covers lies side by side in a row of the image
    ALL: tl.constexpr = R * RUN
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    real = m < rows
    n, pixel = m // (HO * WO), m % (HO * WO)
    start = ((n * H + pixel // WO * STRIDE) * W + pixel % WO * STRIDE) * CI
    k, o = tl.arange(0, BK), tl.arange(0, CO)
    acc = tl.zeros((BM, CO), tl.float32)
    for i in tl.range((ALL + BK - 1) // BK, num_stages=STAGES):
        at = i * BK + k
        inside = at < ALL
        place = at // RUN * (W * CI) + at % RUN
        a = tl.load(x + start[:, None] + place[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        # The dimension that is summed over is contiguous: tensor cores take 32-bit numbers in that order only.
        t = tl.load(w + o[None, :] * ALL + at[:, None], mask=inside[:, None], other=0.0)
        acc = tl.dot(a, t, acc, input_precision=IP)
    acc = tl.maximum(acc + tl.load(b + o)[None, :], 0.0)
    tl.store(y + m[:, None] * CO + o[None, :], acc.to(y.dtype.element_ty), mask=real[:, None])


@triton.jit
def relu_backward_kernel(g, y, out, sums, rows, ROUNDS: tl.constexpr, CO: tl.constexpr, BM: tl.constexpr):
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


def tile_sizes(dtype: torch.dtype) -> dict[str, Any]:
    """The sizes that were fastest on an H200; in fp32 such that they fit smaller cards' shared memory."""
    depth = 32 if dtype == torch.float32 else 64
    return {"BM": 128, "BK": depth, "num_warps": 4, "IP": kernels.tensor_core_precision(dtype), "STAGES": 3}


def suits_cudnn(x: Tensor, w: Tensor, rows: int) -> bool:
    """Whether cuDNN's own fused kernel is the faster one: for many pixels of many channels, in half precision."""
    many = x.shape[-1] % 64 == 0 and w.shape[0] % 64 == 0 and rows >= LARGE
    return many and x.is_cuda and x.dtype == torch.bfloat16


@torch.library.custom_op("playvirtual::conv_relu", mutates_args=())
def conv_relu_op(x: Tensor, w: Tensor, b: Tensor, stride: int) -> Tensor:
    """x (N, H, W, CI), w (CO, side, side, CI) of x's type, b (CO,) -> (N, HO, WO, CO)."""
    (N, H, W, CI), (CO, side, _, _) = x.shape, w.shape
    HO, WO = (H - side) // stride + 1, (W - side) // stride + 1
    rows = N * HO * WO
    if suits_cudnn(x, w, rows):
        images, filters = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        out = torch.cudnn_convolution_relu(images, filters, b.to(x.dtype), [stride] * 2, [0, 0], [1, 1], 1)
        return out.permute(0, 2, 3, 1).contiguous()
    y = x.new_empty(N, HO, WO, CO)
    tiles = tile_sizes(x.dtype)
    conv_relu_kernel[(triton.cdiv(rows, tiles["BM"]),)](
        x, w, b, y, rows, H=H, W=W, HO=HO, WO=WO, CI=CI, CO=CO, R=side, S=side, STRIDE=stride, **tiles
    )
    return y


@conv_relu_op.register_fake
def _(x, w, b, stride):
    (N, H, W, _), (CO, side, _, _) = x.shape, w.shape
    return x.new_empty(N, (H - side) // stride + 1, (W - side) // stride + 1, CO)


@torch.library.custom_op("playvirtual::relu_back", mutates_args=())
def relu_backward_op(gradient: Tensor, y: Tensor) -> list[Tensor]:
    """[the gradient of ReLU's input (N, HO, WO, CO), the bias' gradient (CO,)], in one pass."""
    g, channels = gradient.contiguous(), y.shape[-1]
    out, sums = torch.empty_like(g), torch.zeros(channels, device=y.device)
    rows, tile = y.numel() // channels, 4096 // channels
    tiles = triton.cdiv(rows, tile)
    programs = min(tiles, 1024)  # enough for every GPU, few enough for the sums
    relu_backward_kernel[(programs,)](g, y, out, sums, rows, ROUNDS=triton.cdiv(tiles, programs), CO=channels, BM=tile)
    return [out, sums]


@relu_backward_op.register_fake
def _(gradient, y):
    return [torch.empty(y.shape, dtype=gradient.dtype, device=y.device), y.new_empty(y.shape[-1], dtype=torch.float32)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, b, stride = inputs
    ctx.save_for_backward(x, w, b, output)
    ctx.stride = stride


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, b, y = ctx.saved_tensors
    g, db = relu_backward_op(gradient, y)
    g, images, filters = (t.permute(0, 3, 1, 2) for t in (g, x, w))
    dx = data_gradient(g, filters, ctx.stride, images.shape).permute(0, 2, 3, 1) if ctx.needs_input_grad[0] else None
    dw = _gradients(g, images, filters, ctx.stride, [False, True, False])[1]
    return dx, dw.permute(0, 2, 3, 1), db.to(b.dtype), None


def data_gradient(g: Tensor, w: Tensor, stride: int, size: torch.Size) -> Tensor:
    """dL/dx of size (N, CI, H, W) from dL/d(x * w), (N, CO, HO, WO), and filters (CO, CI, side, side).

    Where the stride divides the filters and the images it is that of a convolution with stride 1 over blocks of pixels:
    cuDNN takes three times as long for a stride of 2.
    """
    _, channels, height, width = size
    if stride == 1 or w.shape[2] % stride or height % stride or width % stride:
        return _gradients(g, _empty_images(g, size), w, stride, [True, False, False])[0]
    blocks = (size[0], depth_channels(channels, stride), height // stride, width // stride)
    dx = _gradients(g, _empty_images(g, blocks), space_to_depth(w, stride), 1, [True, False, False])[0]
    return depth_to_space(dx, stride, channels)


def _empty_images(like: Tensor, size: Sequence[int]) -> Tensor:
    """Images of this size, channels last, whose values are not read."""
    N, channels, height, width = size
    return like.new_empty(N, height, width, channels).permute(0, 3, 1, 2)


def _gradients(g: Tensor, x: Tensor, w: Tensor, stride: int, wanted: list[bool]) -> tuple[Tensor, ...]:
    """PyTorch's gradients of conv2d(x, w) with respect to images, filters and bias, as far as they are wanted."""
    backward = torch.ops.aten.convolution_backward
    found: tuple[Tensor, ...] = backward(g, x, w, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, wanted)
    return found


conv_relu_op.register_autograd(_backward, setup_context=_save)


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """relu(conv2d(x, weight, bias, stride)) of (N, CI, H, W) images, channels last; weight (CO, CI, side, side)."""
    filters = weight.permute(0, 2, 3, 1).to(x.dtype).contiguous()
    y: Tensor = conv_relu_op(x.permute(0, 2, 3, 1).contiguous(), filters, bias.float(), stride)
    return y.permute(0, 3, 1, 2)
