"""What a measurement was made on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from playvirtual.cores import cores


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
