"""The contract of an engine, and the two engines by name with the options that each takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from playvirtual.errors import InputError, unknown
from playvirtual.options import coerce
from playvirtual.study.sweep.grids import Job

ENGINES = {"local": ("workers", "per_gpu", "mps"), "ray": ("address", "cpus_per_run", "gpus_per_run")}  # name → options


class Outcome(NamedTuple):
    """How a run ended: with success, or with the last line of its error."""

    job: Job
    error: str | None
    bad_input: bool = False  # another attempt would end with the same error


class Engine(Protocol):
    """Starts runs and reports how they ended; every run is written into its own folder and can be resumed there."""

    def room(self) -> bool:
        """Whether another run may be started now."""
        ...

    def start(self, job: Job) -> None:
        """Starts a run or resumes it from its last checkpoint; in the stage "probe" takes the run's probe."""
        ...

    def running(self) -> list[Job]:
        """The runs that were started, do not wait in a queue, and have not ended."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """The runs that ended since the last call; returns at the first, at the latest after `seconds`."""
        ...

    def stop(self) -> None:
        """Ends all runs; each keeps what its last checkpoint holds."""
        ...


def check_options(engine: str, options: Mapping[str, Any], device: str) -> None:
    """Raises an `InputError` for an unknown engine, and for options that only another engine would use."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    allowed = ", ".join(f"--{name.replace('_', '-')}" for name in ENGINES[engine])
    for other, names in ENGINES.items():
        for name in names if other != engine else ():
            if (value := options.get(name)) is not None:
                raise InputError(
                    f"{name}: {value!r} is not allowed with --engine {engine}; allowed: {allowed}, or --engine {other}"
                )
    if engine == "ray" and device.startswith("cuda:"):
        raise InputError(
            f"device: {device!r} is not allowed with --engine ray, which assigns the GPUs; allowed: auto, cpu, cuda"
        )


def make_engine(engine: str, options: Mapping[str, Any], device: str) -> Engine:
    """The engine of that name; options are text as on the command line, and None means the default."""
    given = {name: options[name] for name in ENGINES[engine] if options.get(name) is not None}
    for name, kind in (("workers", int), ("per_gpu", int), ("cpus_per_run", float), ("gpus_per_run", float)):
        if name in given:
            given[name] = coerce(name, kind, given[name])
    if engine == "local":
        from playvirtual.study.engines.local import LocalEngine

        return LocalEngine(**given, device=device)
    from playvirtual.study.engines.ray import RayEngine

    return RayEngine(**given, device=device)


def num_workers(engine: str, options: Mapping[str, Any], device: str) -> int | None:
    """How many runs the engine would carry out at a time; None where that is for a cluster to decide."""
    return getattr(make_engine(engine, options, device), "workers", None) if engine == "local" else None
