"""The machine of a measurement, and the kernels that one update runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from playvirtual.device import num_cores


@dataclass(frozen=True)
class Machine:
    """The hardware and versions of a measurement, and its date."""

    device: str  # the GPU's or the processor's name
    torch: str
    cuda: str | None  # the version PyTorch was built for, where the device is a GPU
    cores: int
    threads: int  # of PyTorch's operators on the CPU
    date: str

    def __str__(self) -> str:
        cuda = f" (CUDA {self.cuda})" if self.cuda else ""
        cores = f"{self.cores} core{'s' * (self.cores > 1)}, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.device}, torch {self.torch}{cuda}, {cores}, {self.date}"


def machine(device: torch.device) -> Machine:
    """This machine, with `device` as the one that computes."""
    gpu = device.type == "cuda"
    return Machine(
        device=torch.cuda.get_device_name(device) if gpu else _processor(),
        torch=torch.__version__,
        cuda=torch.version.cuda if gpu else None,
        cores=num_cores(),
        threads=torch.get_num_threads(),
        date=date.today().isoformat(),
    )


def _processor() -> str:
    """The processor's model name, where the system has it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


TOP = 10


@dataclass(frozen=True)
class Kernel:
    """All calls of one kernel in one update."""

    name: str
    calls: float  # per update
    ms: float  # per update
    share: float  # of the time of all kernels


@dataclass(frozen=True)
class Kernels:
    """The kernels that the profiler recorded; its own cost makes their times a little longer."""

    kind: str  # "CUDA kernels" (copies included) or "CPU operators" (nested ones counted, their time once)
    per_update: float
    ms: float  # sum over all kernels, per update
    top: tuple[Kernel, ...]  # the most expensive first


def profile_updates(update: Callable[[], object], updates: int, device: torch.device) -> Kernels:
    """Runs `update` `updates` times under the profiler, which records a captured update kernel by kernel."""
    cuda = device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it prints to stderr when it starts and ends
    # One activity alone: with CPU operators beside them, tens of thousands of kernels would take minutes to process.
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(updates):
            update()
        if cuda:
            torch.cuda.synchronize(device)
    kind = "CUDA kernels" if cuda else "CPU operators"
    return summarize(kind, _calls(profiler.events() or (), cuda), updates)


def _calls(events: Iterable[Any], cuda: bool) -> Iterable[tuple[str, float]]:
    """(name, microseconds) of every kernel or operator that ran on the device."""
    for event in events:
        if cuda and event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            yield event.name, event.time_range.elapsed_us()
        elif not cuda and event.device_type.name == "CPU":
            yield event.name, event.self_cpu_time_total


def summarize(kind: str, calls: Iterable[tuple[str, float]], updates: int) -> Kernels:
    """Sums (name, microseconds) over `updates` updates."""
    count: dict[str, int] = {}
    spent: dict[str, float] = {}
    for name, microseconds in calls:
        count[name] = count.get(name, 0) + 1
        spent[name] = spent.get(name, 0.0) + microseconds
    total = sum(spent.values())
    top = sorted(spent, key=lambda name: -spent[name])[:TOP]
    return Kernels(
        kind,
        sum(count.values()) / updates,
        total / 1e3 / updates,
        tuple(
            Kernel(name, count[name] / updates, spent[name] / 1e3 / updates, spent[name] / max(total, 1e-9))
            for name in top
        ),
    )
