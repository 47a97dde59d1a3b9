"""What the kernels for Hopper GPUs, written in CUDA C++, have in common: their sources and how they are launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from playvirtual.kernels.hopper.cuda_module import CompilerError, CudaError, CudaModule, compiled, has_compiler
from playvirtual.messages import logger

SHARED = 232_448  # bytes of shared memory that a block may have


class Kernel(Protocol):
    """A kernel for certain sizes: a NamedTuple of them, so that kernels can be kept by their sizes."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        ...

    @property
    def threads(self) -> int:
        """Threads of a block."""
        ...

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        ...

    @property
    def source(self) -> str:
        """The kernel in CUDA C++, for these sizes."""
        ...


def supported(device: torch.device) -> bool:
    """Whether it is a Hopper GPU and kernels can be compiled."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0) and _has_compiler()


@cache
def _has_compiler() -> bool:
    if not has_compiler():
        logger.warning("NVRTC, CUDA's compiler that comes with PyTorch, was not found: slower kernels are used")
        return False
    return True


def fits(kernel: Kernel, device: torch.device) -> bool:
    """Whether the kernel can be compiled and an SM can hold a block of it."""
    return _fits(kernel.name, kernel, device.index or 0)


def launch(kernel: Kernel, device: torch.device, blocks: int, arguments: list[Any]) -> None:
    """Launches a kernel on the GPU; a function of its own, so that a test can replace it."""
    module = _module(kernel.name, kernel, device.index or 0)
    module.launch(kernel.name, blocks, kernel.threads, kernel.shared, arguments, cooperative=False)


def processors(device: torch.device) -> int:
    """The SMs that this process has: under MPS it may be a part of them."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _module(_name: str, kernel: Kernel, _device: int) -> CudaModule:
    return CudaModule(compiled(kernel.source, "sm_90a"))


@cache
def _fits(name: str, kernel: Kernel, device: int) -> bool:
    return fits_or_warns(name, lambda: _module(name, kernel, device).resident(name, kernel.threads, kernel.shared) > 0)


def fits_or_warns(name: str, fits: Callable[[], bool]) -> bool:
    """Whether it `fits`; a kernel that the compiler refuses does not, which is said, and slower ones are used then."""
    try:
        return fits()
    except CompilerError as error:
        logger.warning(f"{name}: the kernel for Hopper GPUs is not compiled, slower ones are used ({error})")
        return False
    except CudaError:  # it wants more of an SM than there is
        return False


def source(
    name: str, constants: dict[str, int], columns: int = 0, *, transposed: bool = False, own_products: str = ""
) -> str:
    """The text of a source in this folder, with what all share, these constants, and the products that it uses.

    Those are products of so many `columns`, if they are given, else `own_products`.
    """
    folder = Path(__file__).parent
    if columns:
        own_products = products(columns, transposed=transposed)
    values = "".join(f"constexpr int {key} = {value};\n" for key, value in constants.items())
    parts = [_read(folder / "hopper.cuh"), values, own_products]
    return "".join([*parts, _read(folder / name)])


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")  # whatever the locale says


def products(columns: int, *, transposed: bool = False) -> str:
    """The tensor cores' products of 64 × 16 by 16 × columns, which name their registers one by one.

    In both matrices the 16 numbers of a sum lie side by side or, if they are `transposed`, the 64 and the columns do.
    """
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))

    def operands(constraint: str) -> str:
        return ", ".join(f'"{constraint}"(d[{i}])' for i in range(count))

    text, order = [], int(transposed)
    for name, adds, constraint in (("multiply", 0, "=f"), ("multiply_add", 1, "+f")):
        product = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
        asm = f"{product} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, {order}, {order};"
        text.append(
            f"__device__ __forceinline__ void {name}(float (&d)[{count}], u64 a, u64 b) {{"
            f'asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {adds}, 0;\\n{asm}\\n}}"'
            f' : {operands(constraint)} : "l"(a), "l"(b));}}'
        )
    wait = f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {operands("+f")} :: "memory");'
    text.append(f"__device__ __forceinline__ void wait_products(float (&d)[{count}]) {{{wait}}}\n")
    return "\n".join(text)
