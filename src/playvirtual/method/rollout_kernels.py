"""Triton kernels that roll out the convolutional dynamics: one launch per step, and two per step back.

The arithmetic is `ConvDynamics`' own. A state is a small map, so one program holds one sample's whole map, and only
BatchNorm's sums over the batch need all programs to have ended. A launch therefore goes from one such sum to the next:
- forward:  BatchNorm, conv2, ReLU, rescaling of one step, then conv1, action map, ReLU and the sums of the next
- backward: rescaling′, ReLU′, conv2ᵀ and the sums of one step | BatchNorm′, ReLU′, conv1ᵀ (together they were slower)
States are stored as (N, positions, channels). The first `first` samples and the others are two batches that share the
launches, each with its own sums.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
import triton
import triton.language as tl


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
def _group(first, P: tl.constexpr):
    """Which of the two batches the program's sample belongs to, and how many numbers a channel has there."""
    second = tl.program_id(0) >= first
    samples = tl.where(second, tl.num_programs(0) - first, first)
    return second.to(tl.int32), (samples * P).to(tl.float32)


@triton.jit
def _moments(sums, c, count, C: tl.constexpr, eps: tl.constexpr):
    mean = tl.load(sums + c) / count
    var = tl.maximum(tl.load(sums + C + c) / count - mean * mean, 0.0)
    return mean, 1.0 / tl.sqrt(var + eps)


@triton.jit
def pack(w1, w2, taps, flipped, s_out, s_in, s_tap, t_out, t_in, t_tap, C: tl.constexpr):
    """Both filters (out, in, 3, 3) as (2, 9, out, in) and, mirrored for the way back, as (2, 9, in, out).

    What a product adds up over lies side by side: tensor cores take 32-bit numbers in that order only.
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
def _first_half(z, w1, maps, actions, x1, sums, first, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr,
                W: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """x1 = relu(conv1(z) + maps[action]); adds x1 and x1² to its batch's part of `sums` (2, 2, C)."""
    inside, here = _tile(P, BP, C)
    group, _ = _group(first, P)
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
def _second_half(x1, sums, gamma, beta, w2, b2, y, out, ranges, places, first, bn_eps: tl.constexpr,
                 range_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
                 IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """y = BatchNorm(x1), u = relu(conv2(y)), out = u rescaled to [0, 1]; remembers range, minimum and their places."""
    inside, here = _tile(P, BP, C)
    n, p, c = tl.program_id(0), tl.arange(0, BP), tl.arange(0, C)
    group, count = _group(first, P)
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
    # The first place of either, by comparison: an argmax over a reshaped tile came out wrong on a GPU.
    flat = p[:, None] * C + c[None, :]
    tl.store(places + 2 * n, tl.min(tl.min(tl.where(inside & (u == top), flat, BP * C), 1), 0))
    tl.store(places + 2 * n + 1, tl.min(tl.min(tl.where(inside & (u == bottom), flat, BP * C), 1), 0))
    tl.store(ranges + 2 * n, spread)
    tl.store(ranges + 2 * n + 1, bottom)
    tl.store(out + here, ((u - bottom) / spread).to(out.dtype.element_ty), mask=inside)


@triton.jit
def begin(z, w1, maps, actions, x1, sums, first, P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
           IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The first half of the first step."""
    _first_half(z, w1, maps, actions, x1, sums, first, P, BP, C, W, IP, STAGES)


@triton.jit
def step(x1, sums, gamma, beta, w2, b2, y, out, ranges, places, first, w1, maps, actions, next_x1, next_sums,
          LAST: tl.constexpr, bn_eps: tl.constexpr, range_eps: tl.constexpr, P: tl.constexpr, BP: tl.constexpr,
          C: tl.constexpr, W: tl.constexpr, IP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The second half of one step and, but for the last, the first half of the next."""
    _second_half(
        x1, sums, gamma, beta, w2, b2, y, out, ranges, places, first, bn_eps, range_eps, P, BP, C, W, IP, STAGES
    )
    if not LAST:
        tl.debug_barrier()
        _first_half(out, w1, maps, actions, next_x1, next_sums, first, P, BP, C, W, IP, STAGES)


@triton.jit
def second_back(g, g_ahead, g_last, z, ranges, places, w2, x1, sums, du, dy, dsums, first, WHOLE: tl.constexpr,
                 AHEAD: tl.constexpr, LAST: tl.constexpr, bn_eps: tl.constexpr, range_eps: tl.constexpr,
                 P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr, IP: tl.constexpr,
                 STAGES: tl.constexpr):  # fmt: skip
    """The way back through the second half of a step, z = (relu(v) − min) / (max − min): du = dL/dv, dy = conv2ᵀ(du).

    dL/dz is g (N, P, C) if that is the WHOLE, else `g_ahead` for the first batch and `g_last` for the second. Adds
    dy, dy·x̂ and du to its batch's part of `dsums` (2, 3, C).
    """
    inside, here = _tile(P, BP, C)
    n = tl.program_id(0)
    gz = tl.zeros((BP, C), tl.float32)
    if WHOLE:
        gz += tl.load(g + here, mask=inside, other=0.0).to(tl.float32)
    if AHEAD:
        gz += tl.load(g_ahead + here, mask=inside & (here < first * P * C), other=0.0).to(tl.float32)
    if LAST:
        gz += tl.load(g_last + here - first * P * C, mask=inside & (here >= first * P * C), other=0.0).to(tl.float32)
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
    group, count = _group(first, P)
    mean, rstd = _moments(sums + group * 2 * C, c, count, C, bn_eps)
    hat = (tl.load(x1 + here, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    value = value.to(tl.float32)
    tl.atomic_add(dsums + group * 3 * C + c, tl.sum(value, 0))
    tl.atomic_add(dsums + group * 3 * C + C + c, tl.sum(value * hat, 0))
    tl.atomic_add(dsums + group * 3 * C + 2 * C + c, tl.sum(gv.to(tl.float32), 0))


@triton.jit
def first_back(dy, x1, sums, dsums, gamma, w1, dx, g_ahead, dz, first, AHEAD: tl.constexpr, bn_eps: tl.constexpr,
                P: tl.constexpr, BP: tl.constexpr, C: tl.constexpr, W: tl.constexpr, IP: tl.constexpr,
                STAGES: tl.constexpr):  # fmt: skip
    """The way back through the first half of a step: dx = dL/d(conv1's output), dz = conv1ᵀ(dx) + `g_ahead`."""
    inside, here = _tile(P, BP, C)
    c = tl.arange(0, C)
    group, count = _group(first, P)
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
    if AHEAD:
        acc += tl.load(g_ahead + here, mask=inside & (here < first * P * C), other=0.0).to(tl.float32)
    tl.store(dz + here, acc.to(dz.dtype.element_ty), mask=inside)
