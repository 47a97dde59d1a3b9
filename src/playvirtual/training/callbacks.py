"""Callbacks: functions of the user's that a run calls after steps, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from playvirtual.agents.agent import Agent
from playvirtual.config.schema import Config
from playvirtual.errors import InputError, StopTraining, shown, unknown

METHODS = ("on_step", "on_evaluation", "on_checkpoint")


class StepEvent(NamedTuple):
    """A step that was taken, with its updates; nothing of it has waited for the device."""

    run: Path  # the run folder
    config: Config
    agent: Agent  # to look at: what is changed in it, or drawn from its generator, changes the run
    step: int  # in the configuration's step_unit, from 1
    updates: int  # so far
    episode_return: float | None  # of the episode that ended in this step
    metrics: Mapping[str, Any] | None  # the line of metrics.jsonl, in steps that write one


class EvaluationEvent(NamedTuple):
    """An evaluation, after its line in evaluations.jsonl was written."""

    run: Path
    config: Config
    agent: Agent
    step: int
    score: float  # the mean of the returns
    returns: list[float]
    video: Path | None  # with video_at_evaluation


class CheckpointEvent(NamedTuple):
    """A checkpoint that is complete and synced."""

    run: Path
    config: Config
    agent: Agent
    step: int
    path: Path  # only the last two are kept


class Callback:
    """What `pv.train(…, callbacks=[…])` calls; a subclass, or any other object, has one or more of these methods.

    Raising `pv.StopTraining("reason")` in one of them ends the run early, with a checkpoint and an evaluation of that
    step. Any other exception fails the run, with a checkpoint of that step.
    """

    def on_step(self, event: StepEvent) -> None:
        """After every step, before a checkpoint or an evaluation of the same step."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """After every evaluation; the checkpoint of the same step was written before it."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """After every checkpoint."""


class CallbackFailed(Exception):
    """A callback, whose name is this exception's text, has raised `error`."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.error = error


class Callbacks:
    """All callbacks of a run, in the order in which they are called."""

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
            raise InputError(f"callbacks: {shown(callbacks)} is not allowed; allowed: a list of them")
        for callback in callbacks:
            _check(callback)
        self._methods = {name: [_bound(callback, name) for callback in callbacks] for name in METHODS}

    def wants(self, method: str) -> bool:
        """Whether any callback has the method, so that an event need not be made for nothing."""
        return any(bound is not None for bound in self._methods[method])

    def call(self, method: str, event: StepEvent | EvaluationEvent | CheckpointEvent) -> str:
        """Calls the method of every callback; returns the reason why the run is to stop, "" if it is not."""
        reasons = []
        for bound in self._methods[method]:
            try:
                if bound is not None:
                    bound(event)
            except StopTraining as stop:
                reasons.append(str(stop) or f"{_name(bound)} asked for it")
            except Exception as error:
                raise CallbackFailed(_name(bound), error) from error
        return reasons[0] if reasons else ""


def _check(callback: Any) -> None:
    """Raises unless the object has one of the methods, and no other whose name begins like theirs."""
    what = type(callback).__name__
    if isinstance(callback, type):
        raise InputError(f"callbacks: {callback.__name__} is a class; allowed: an object of it, {callback.__name__}()")
    for name in dir(callback):
        if name.startswith("on_") and name not in METHODS and callable(getattr(callback, name)):
            raise unknown(f"callbacks: {what}", name, METHODS)
    if not any(callable(getattr(callback, name, None)) for name in METHODS):
        raise InputError(f"callbacks: {what} has none of the methods; allowed: {', '.join(METHODS)}")


def _bound(callback: Any, name: str) -> Any:
    """The method of a callback; None if it has none of its own."""
    own = getattr(callback, name, None)
    return None if own is None or getattr(own, "__func__", None) is getattr(Callback, name) else own


def _name(bound: Any) -> str:
    owner = getattr(bound, "__self__", None)
    return f"{type(owner).__name__}.{bound.__name__}" if owner is not None else str(getattr(bound, "__name__", bound))
