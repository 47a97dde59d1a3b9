"""What the device runs in one update: kernels on a GPU, operators on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

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
    """What the profiler saw; its own cost makes times a little longer than they are without it."""

    kind: str  # "CUDA kernels" (copies included) or "CPU operators" (nested ones counted, their time once)
    per_update: float
    ms: float  # sum over all of them, per update
    top: tuple[Kernel, ...]  # the most expensive first


def profile_updates(update: Callable[[], object], updates: int, device: torch.device) -> Kernels:
    """Runs `update` so many times under the profiler; a captured update is seen kernel by kernel."""
    cuda = device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it says on stderr that it began and ended
    # One activity alone: beside CPU operators, tens of thousands of kernels would take minutes to tell apart.
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(updates):
            update()
        if cuda:
            torch.cuda.synchronize(device)
    kind = "CUDA kernels" if cuda else "CPU operators"
    return summarise(kind, _calls(profiler.events() or (), cuda), updates)


def _calls(events: Iterable[Any], cuda: bool) -> Iterable[tuple[str, float]]:
    """(name, microseconds) of everything the device itself ran."""
    for event in events:
        if cuda and event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            yield event.name, event.time_range.elapsed_us()
        elif not cuda and event.device_type.name == "CPU":
            yield event.name, event.self_cpu_time_total


def summarise(kind: str, calls: Iterable[tuple[str, float]], updates: int) -> Kernels:
    """Adds up (name, microseconds) of `updates` updates."""
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
