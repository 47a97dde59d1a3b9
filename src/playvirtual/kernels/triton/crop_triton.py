"""Crops of uint8 images, regrouped by space-to-depth, by one Triton kernel."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
import torch
import triton
import triton.language as tl
from torch import Tensor

from playvirtual.kernels.space_to_depth import depth_channels


@triton.jit
def crop_kernel(images, offsets, source, factor, out, STEP: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
          W: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, CB: tl.constexpr, CLAMP: tl.constexpr,
          XS: tl.constexpr, CS: tl.constexpr):  # fmt: skip
    """One row of blocks of one crop, CB channels each, in the order y, x, channel; XS ≥ SIZE and CS ≥ C.

    STEP is the distance between two images in memory.
    """
    v, row = tl.program_id(0), tl.program_id(1)
    x = tl.arange(0, XS)[:, None, None]
    line = tl.arange(0, BLOCK)[None, :, None]
    c = tl.arange(0, CS)[None, None, :]
    inside = (x < SIZE) & (c < C)
    top, left = tl.load(offsets + 2 * v).to(tl.int32), tl.load(offsets + 2 * v + 1).to(tl.int32)
    y, column = top + row * BLOCK + line, left + x
    if CLAMP:  # only where a crop may leave its image: neighbouring pixels are fetched together without
        y, column = tl.minimum(tl.maximum(y, 0), H - 1), tl.minimum(tl.maximum(column, 0), W - 1)
    image = images + tl.load(source + v) * STEP
    value = tl.load(image + (c * H + y) * W + column, mask=inside, other=0).to(tl.float32) * tl.load(factor + v)
    begin = out + (v.to(tl.int64) * (SIZE // BLOCK) + row) * (SIZE // BLOCK * CB)
    place = x // BLOCK * CB + (line * BLOCK + x % BLOCK) * C + c
    tl.store(begin + place, value.to(out.dtype.element_ty), mask=inside)
    if CB > BLOCK * BLOCK * C:  # channels that are left over
        block = tl.arange(0, XS)[:, None]
        spare = BLOCK * BLOCK * C + tl.arange(0, 8)[None, :]
        tl.store(begin + block * CB + spare, 0.0, mask=(block < SIZE // BLOCK) & (spare < CB))


@torch.library.custom_op("playvirtual::crop", mutates_args=())
def crop_op(
    images: Tensor, offsets: Tensor, source: Tensor, factor: Tensor, size: int, block: int, clamp: bool, low: bool
) -> Tensor:
    """(N, C, H, W) uint8 -> (V, size/block, size/block, channels) bfloat16 if `low`, else float32."""
    (_, C, H, W), V, rows = images.shape, len(source), size // block
    dtype = torch.bfloat16 if low else torch.float32
    channels = depth_channels(C, block)
    out = torch.empty(V, rows, rows, channels, dtype=dtype, device=images.device)
    power = triton.next_power_of_2
    crop_kernel[(V, rows)](
        images, offsets, source, factor, out, STEP=images.stride(0), C=C, H=H, W=W, SIZE=size, BLOCK=block,
        CB=channels, CLAMP=clamp, XS=power(size), CS=power(C),
    )  # fmt: skip
    return out


@crop_op.register_fake
def _(images, offsets, source, factor, size, block, clamp, low):
    shape = (len(source), size // block, size // block, depth_channels(images.shape[1], block))
    return images.new_empty(shape, dtype=torch.bfloat16 if low else torch.float32)


def crop(
    images: Tensor,
    offsets: Tensor,
    source: Tensor,
    factor: Tensor,
    size: int,
    block: int,
    *,
    clamp: bool,
    low: bool,
) -> Tensor:
    """Crop v, at its offset (top, left) in images[source[v]], times its factor; in blocks, bfloat16 if `low`.

    (N, C, H, W) uint8 -> (V, `depth_channels`, size/block, size/block). Without `clamp` no crop may leave its image;
    `block` is a power of two that divides `size`.
    Each of the images is contiguous; they may lie apart.
    """
    arguments = (images, offsets.contiguous(), source, factor, size, block, clamp, low)
    crops: Tensor = crop_op(*arguments)
    return crops.permute(0, 3, 1, 2)
