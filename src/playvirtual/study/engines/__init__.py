"""Where the runs of a sweep are carried out: on this machine, or on a Ray cluster."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from playvirtual.study.grids import Job


class Outcome(NamedTuple):
    """A run that has ended: in success, or with the last line of its error."""

    job: Job
    error: str | None
    hopeless: bool = False  # bad input: another attempt would end in the same error


class Engine(Protocol):
    """Takes runs and tells how they ended; every run is written into its own folder and can be resumed there."""

    def room(self) -> bool:
        """Whether another run may be started now."""
        ...

    def start(self, job: Job) -> None:
        """Begins a run, or goes on with it where it stopped."""
        ...

    def begun(self) -> list[Job]:
        """The runs at work: those that were started, do not wait for room in a queue, and have not ended."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """The runs that ended since the last call; returns at the first, at the latest after `seconds`."""
        ...

    def stop(self) -> None:
        """Ends all runs; each keeps what its last checkpoint holds."""
        ...
