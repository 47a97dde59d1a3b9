"""Gradients of the convolutional dynamics' parameters after `rollout_hopper`: one product per filter over all steps.

The kernels are CUDA C++ (gradients_hopper.cu). They read what those rollouts stored in an order of their own;
rollouts in Triton have `parameter_gradients` in `rollout_triton.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from playvirtual.kernels import hopper
from playvirtual.kernels.hopper.cuda_module import CudaModule, compiled

CHANNELS, POSITIONS = 64, 49
THREADS = 512
FOUND = 9 * CHANNELS * CHANNELS  # numbers that a block finds for its filter
REGIONS = 9 * CHANNELS  # and for an action: corners, borders and the inside of the map
PARTS = 12 * CHANNELS  # these with four quarters of the inside
STAGES_BYTES = 4 * (16 + 2 * (8 * 57 + 1 + 448) * 16)
MOST_ACTIONS = (hopper.SHARED - STAGES_BYTES) // (PARTS * 4)  # whose sums a block can keep in shared memory


def source() -> str:
    """The kernels in CUDA C++."""
    return hopper.source("gradients_hopper.cu", {}, own_products=_products())


def _products() -> str:
    """The tensor cores' products of 64 × 16, from registers, by 16 × 64, which name their registers one by one."""
    registers = ", ".join(f"%{i}" for i in range(32))
    results = ", ".join(f'"+f"(d[{i}])' for i in range(32))
    operands = ", ".join(f'"r"(a[{i}])' for i in range(4))
    product = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
    asm = f"{product} {{{registers}}}, {{%32, %33, %34, %35}}, %36, p, 1, 1, 1;"
    every = ", ".join(f'"+f"({name}[{i}])' for name in "abc" for i in range(32))
    arguments = ", ".join(f"float (&{name})[32]" for name in "abc")
    return (
        "__device__ __forceinline__ void multiply_rows(float (&d)[32], const u32 (&a)[4], u64 b) {"
        f'asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n{asm}\\n}}" : {results} : {operands}, "l"(b));}}\n'
        f"__device__ __forceinline__ void wait_all_products({arguments}) {{"
        f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {every} :: "memory");}}\n'
    )


@cache
def _module(_device: int) -> CudaModule:
    return CudaModule(compiled(source(), "sm_90a"))


def _launcher(device: torch.device) -> Callable[..., None]:
    """What launches the kernels on the GPU; a function of its own, so that a test can replace it."""
    return _module(device.index or 0).launch


@torch.library.custom_op("playvirtual::persistent_rollout_parameters", mutates_args=())
def parameter_gradients(
    actions: Tensor,  # (N, K) int64
    maps: Tensor,  # (|A|, P·C)
    w1: Tensor,  # (C, C, 3, 3)
    w2: Tensor,
    states: Tensor,  # (K + 1, N, …) fragments: the states that the steps begin in, and the last ones
    x1: Tensor,  # (K, N, …) fragments: the first convolution's outputs after the ReLU
    lines: Tensor,  # (K, 2 batches, 2, C): what BatchNorm multiplies them with and adds
    dx: Tensor,  # (K, N, P, C): dL/d outputs of the first convolution
    du: Tensor,  # (K, N, P, C): of the second
    totals: Tensor,  # (K, 2 batches, 3, C): sums of dL/dy, of it times x̂, and of du
    num_kept: int,
) -> list[Tensor]:
    """[gradients of maps, w1 and w2; those of beta, gamma and b2 (3, C)].

    Maps are what constant planes add: the same at all positions of a row between its ends, and in all rows between the
    first and the last. Their gradient is the mean over positions that share a value.
    """
    dmaps, dw1, dw2, vectors = found = _gradients(maps, w1, w2)
    K, N, _ = x1.shape
    share = max(1, min(hopper.processors(x1.device) // 2, (K * N + 1) // 2))  # blocks per filter
    num_actions = len(maps)
    partials = dmaps.new_empty(2 * share * FOUND + share * num_actions * REGIONS)
    launch = _launcher(x1.device)
    sizes = [N, num_kept, K, num_actions]
    shared = STAGES_BYTES + num_actions * PARTS * 4
    inputs = [actions.contiguous(), states, x1, dx, du, lines, partials]
    launch("parameter_gradients", 2 * share, THREADS, shared, [*inputs, *sizes], cooperative=False)
    blocks = -(-(2 * FOUND + num_actions * REGIONS + 3 * CHANNELS) // 256)
    strides = [stride for w in (dw1, dw2) for stride in (w.stride(1), w.stride(0), w.stride(3))]
    outputs = [partials, totals, dw1, dw2, dmaps, vectors]
    launch("add_partials", blocks, 256, 4096, [*outputs, share, num_actions, K, *strides], cooperative=False)
    return found


def _gradients(maps: Tensor, w1: Tensor, w2: Tensor) -> list[Tensor]:
    """Filters' gradients in memory as the filters are: (out, 3, 3, in) for channels last."""
    return [
        torch.empty_like(maps, memory_format=torch.contiguous_format),
        *(torch.empty_like(w, memory_format=_memory_format(w)) for w in (w1, w2)),
        maps.new_empty(3, CHANNELS),
    ]


def _memory_format(weight: Tensor) -> torch.memory_format:
    return torch.channels_last if weight.stride(1) == 1 else torch.contiguous_format


@parameter_gradients.register_fake
def _(actions, maps, w1, w2, states, x1, lines, dx, du, totals, num_kept):
    return _gradients(maps, w1, w2)
