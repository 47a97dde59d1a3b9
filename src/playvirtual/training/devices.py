"""Which device a run computes on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from playvirtual.config import check_device
from playvirtual.cores import cores
from playvirtual.errors import InputError


def resolve(name: str) -> torch.device:
    """`auto` is the GPU where there is one; asking for a GPU that is not there is an error."""
    check_device(name)
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


def set_precision(name: str) -> None:
    """Lets matrix products and convolutions use TF32, or not; bf16 is the agent's own business."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "fp32"


@dataclass(frozen=True)
class Machine:
    """What a measurement was made on, and when."""

    device: str  # the GPU's or the processor's name
    torch: str
    cuda: str | None  # the version PyTorch was built for, where the device is a GPU
    cores: int
    threads: int  # of the networks on the CPU
    date: str

    def __str__(self) -> str:
        cuda = f" (CUDA {self.cuda})" if self.cuda else ""
        cores = f"{self.cores} core{'s' * (self.cores > 1)}, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.device}, torch {self.torch}{cuda}, {cores}, {self.date}"


def machine(device: torch.device) -> Machine:
    """The machine as it is now, for `device`."""
    gpu = device.type == "cuda"
    return Machine(
        device=torch.cuda.get_device_name(device) if gpu else _processor(),
        torch=torch.__version__,
        cuda=torch.version.cuda if gpu else None,
        cores=cores(),
        threads=torch.get_num_threads(),
        date=date.today().isoformat(),
    )


def _processor() -> str:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
