"""What a run computes on: the device, its precision, and the number of threads and cores.

PyTorch is imported when it is first needed: processes that only step environments do without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from playvirtual.errors import InputError, RunError
from playvirtual.files import available_memory

if TYPE_CHECKING:
    import torch

PARTITION = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of a GPU's SMs that a process has under MPS
GPU_EXPECTED = "PLAYVIRTUAL_GPU_EXPECTED"  # set by sweeps for runs that they give a GPU to
PRODUCTS = ((288, 3136, 512), (800, 3136, 512), (416, 512, 512))  # sizes that have been wrong on a part of the SMs


def num_cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_cores() -> int:
    """The cores that are this run's own: OMP_NUM_THREADS where it is set, as sweeps do, never more than there are."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(wanted), num_cores()) if wanted.isdecimal() and int(wanted) else num_cores()


def check_device_name(name: str) -> None:
    """Raises an InputError unless that is how a device is named, whether it is there or not."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise InputError(f"device: {name!r} is not allowed; allowed: auto, cpu, cuda, cuda:N")


def resolve_device(device: str | torch.device) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one, and a GPU that is not there is an InputError.

    A run that a sweep gave a GPU to and that cannot see it, as while MPS recovers from a fault, does not continue on
    the CPU, slowly: it fails with a RunError, and the sweep tries it again.
    """
    import torch

    name = str(device)
    check_device_name(name)
    if name != "cpu" and os.environ.get(GPU_EXPECTED) and not torch.cuda.is_available():
        raise RunError("device: the sweep gave this run a GPU, but PyTorch sees none; did it or MPS fail?")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        if torch.device(name).index is not None and (torch.device(name).index or 0) >= count > 0:
            raise InputError(
                f"device: {name!r} is not there; allowed: cpu, {', '.join(f'cuda:{i}' for i in range(count))}"
            )
        if count == 0:
            raise InputError(f"device: {name!r} is not there (PyTorch sees no GPU); allowed: auto, cpu")
    return torch.device(name)


def is_gpu(name: str) -> bool:
    """Whether a device of that name, which need not be there, is a GPU."""
    check_device_name(name)
    if name == "auto":
        import torch

        return torch.cuda.is_available()
    return name.startswith("cuda")


def check_memory(device: torch.device, needs: Mapping[str, int]) -> None:
    """Raises an InputError with the numbers if the bytes that are needed, by what needs them, are not free there.

    What needs more than there is would not fail by itself: the kernel kills the process when the memory is written to.
    """
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    needed = sum(needs.values())
    if needed > free:
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in needs.items())
        raise InputError(
            f"memory: about {_gib(needed)} GiB are needed ({parts}), {_gib(free)} GiB are free; what decides it: "
            "batch_size, K, M, the sizes of networks and images, capacity, eval_envs, eval_episodes"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f}"


def configure_torch(device: torch.device, precision: str, threads: int = 0) -> None:
    """Makes this process compute in a run's precision and, on the CPU, with its number of threads.

    It is called before an agent of the run acts or learns. Matrix products and convolutions may use TF32 unless the
    precision is fp32; bf16 is applied by the agent. With 0 threads the number is PyTorch's own choice. A part of a GPU
    on which matrix products are wrong is an InputError.
    """
    import torch

    _check_partition(device)

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    _thread_count.use(threads if device.type == "cpu" else 0)


def _check_partition(device: torch.device) -> None:
    """Raises an InputError if the SMs that this process has under MPS multiply wrongly.

    With CUDA 13.0, cuBLAS's products of bfloat16 are wrong on 72 and on 98 of an H200's 132 SMs, and right on 32, 66
    and all of them.
    """
    import torch

    if device.type != "cuda" or os.environ.get(PARTITION, "100") == "100" or products_are_right(device):
        return
    count = torch.cuda.get_device_properties(device).multi_processor_count
    raise InputError(
        f"{PARTITION}: {os.environ[PARTITION]} leaves {count} SMs, on which matrix products are wrong (a fault of "
        "cuBLAS); allowed: another part, such as 50 or 25 on an H200, or 100, which is all"
    )


def products_are_right(device: torch.device, rounds: int = 8) -> bool:
    """Whether products of bfloat16 matrices, with and without a bias, are near those of float32 there."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    errors = []
    for rows, inner, columns in PRODUCTS * rounds:
        sizes = ((rows, inner), (columns, inner), (columns,), (rows, columns))
        a, w, bias, d = (torch.randn(size, generator=generator, device=device).bfloat16() for size in sizes)
        exact = a.float() @ w.float().t()
        pairs = (
            (torch.addmm(bias, a, w.t()), exact + bias.float()),
            (a @ w.t(), exact),
            (d.t() @ a, d.float().t() @ a.float()),
        )
        errors += [(found.float() - wanted).norm() / wanted.norm() for found, wanted in pairs]
    return bool((torch.stack(errors) < 0.02).all())  # NaN is not less; bfloat16 rounds by 0.002


def num_threads(device: torch.device) -> int:
    """The threads that operators on this device use: on the CPU they decide the order of sums; 0 on a GPU."""
    import torch

    return torch.get_num_threads() if device.type == "cpu" else 0


def effective_precision(device: torch.device, precision: str) -> str:
    """The precision that updates really have there: tensor cores take tf32 and bf16 since NVIDIA's Ampere."""
    import torch

    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return precision if able else "fp32"


class _ThreadCount:
    """The number of threads of PyTorch's operators: a run's, or what it was before any run asked for another."""

    def __init__(self) -> None:
        self._asked = 0  # by the last run; 0: nothing to undo
        self._before = 0

    def use(self, count: int) -> None:
        import torch

        now = torch.get_num_threads()
        own = self._before if now == self._asked else now  # another number is a later choice of the caller's
        self._asked, self._before = count, own
        if (wanted := count or own) != now:
            torch.set_num_threads(wanted)


_thread_count = _ThreadCount()
