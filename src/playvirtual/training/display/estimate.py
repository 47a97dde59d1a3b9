"""How long a run will take on this machine, measured before it begins on parts of its own that are thrown away."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import torch

from playvirtual import envs
from playvirtual.config.schema import SIZES, Config
from playvirtual.device import resolve_device
from playvirtual.messages import duration
from playvirtual.training.trainer import Trainer

LEAST_STEPS = 1_000  # agent steps: the time of a shorter run is not worth measuring
RANDOM_STEPS = 40  # agent steps of random play that are timed
ACTING_STEPS = 20  # agent steps of the untrained agent that are timed
UPDATE_SECONDS = 0.5  # that updates are timed for, at least one of every kind
SLOW = 3.0  # seconds of the first updates, after which no others are timed
LONG = 24 * 3600.0  # seconds: a run that takes longer gets advice


@dataclass(frozen=True)
class Estimate:
    """Seconds of the parts of a run, each measured."""

    random_step: float  # an agent step of random play
    acting_step: float  # an agent step of the agent, without updates
    update: float  # one update

    def learning_step(self, config: Config) -> float:
        """An agent step with its updates."""
        return self.acting_step + config.agent.updates_per_step * self.update

    def seconds(self, config: Config, step: int = 0) -> float:
        """What is left of a run after `step` agent steps, without its evaluations."""
        random, learning = phases_left(config, step)
        return random * self.random_step + learning * self.learning_step(config)


def phases_left(config: Config, step: int = 0) -> tuple[int, int]:
    """The agent steps of random play and those of learning that are left of a run after `step` agent steps."""
    random = max(0, min(config.replay.learning_starts, config.agent_steps) - step)
    return random, config.agent_steps - step - random


def is_worth_measuring(config: Config, steps_left: int) -> bool:
    """Whether the time of a run is told before it begins: not of a short one, and not where updates are compiled.

    To compile them twice would take longer than it is worth, and without that an update takes many times as long.
    """
    compiled = resolve_device(config.device).type == "cuda" and config.compile != "off"
    return steps_left >= LEAST_STEPS and not compiled


def measure(config: Config) -> Estimate:
    """Times random play, acting and updates of the configuration with an environment, a replay buffer and an agent.

    They are built for this and closed.
    """
    span = config.agent.lookahead(config.objective.K)
    fill = max(RANDOM_STEPS, span + config.environment.frame_stack + 10)
    parts = replace(
        config,
        steps=max(config.steps, 4 * fill * config.frames_per_step),
        compile="off",
        agent=replace(config.agent, updates_per_step=0.0),  # they are made by hand
        replay=replace(config.replay, learning_starts=fill, capacity=max(256, 2 * fill)),
    )
    measured = _measure(parts, fill)
    gc.collect()  # a trainer's parts refer to each other, and may hold the memory of a GPU
    return Estimate(*measured)


def _measure(config: Config, fill: int) -> tuple[float, float, float]:
    """The seconds of a step of random play, of a step of the agent, and of an update."""
    with closing(Trainer(config)) as trainer:
        random_step = _timed(trainer, partial(trainer.train, fill)) / fill
        trainer.train(2)  # the first actions of the agent's are slower
        acting_step = _timed(trainer, partial(trainer.train, ACTING_STEPS)) / ACTING_STEPS
        return random_step, acting_step, _update_seconds(trainer)


def _update_seconds(trainer: Trainer) -> float:
    """The seconds of an update: a mean over whole patterns, or that of the first pattern where updates are slow."""
    # Parts that are moved every second time count; a rarer kind, such as the copy to a target network, counts little.
    kinds = min(trainer.agent.update_pattern.period, 4)

    def update() -> None:
        for _ in range(kinds):
            trainer.learner.update()

    trainer.learner.schedule.set(trainer.global_step)
    first = _timed(trainer, update)
    if first > SLOW:
        return first / kinds
    spent, made = 0.0, 0  # the first ones allocate memory and choose kernels
    while spent < UPDATE_SECONDS:
        spent, made = spent + _timed(trainer, update), made + kinds
    return spent / made


def _timed(trainer: Trainer, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
    return max(time.perf_counter() - start, 1e-9)


def estimate_lines(estimate: Estimate, config: Config, device: torch.device, step: int = 0) -> list[str]:
    """The time that is left, what it was measured from, and advice where it is more than a day."""
    seconds, (random, learning) = estimate.seconds(config, step), phases_left(config, step)
    phases = [f"{random:,} random steps at {_rate(estimate.random_step)}/s"] if random else []
    phases += [f"{learning:,} learning steps at {_rate(estimate.learning_step(config))}/s"] if learning else []
    update = f"{1e3 * estimate.update:.3g} ms" if estimate.update < 1 else f"{estimate.update:.3g} s"
    where = "GPU" if device.type == "cuda" else "CPU"
    lines = [
        f"estimate: about {duration(seconds)} on this {where} without the evaluations: {', then '.join(phases)}; "
        f"measured: an update takes {update}"
    ]
    if seconds > LONG:
        lines.append(f"that is more than a day; what makes it shorter: {', '.join(_advice(config, device))}")
    return lines


def _rate(seconds: float) -> str:
    """Steps per second with three digits, or all of a whole number of more."""
    return f"{1 / seconds:,.0f}" if seconds <= 0.001 else f"{1 / seconds:.3g}"


def _advice(config: Config, device: torch.device) -> list[str]:
    smaller = SIZES[: SIZES.index(config.size or "paper")]
    sized = not envs.env_family(config.task).own_settings
    return [
        *([f"--size {smaller[-1]}"] if smaller and sized else []),
        f"fewer --steps than {config.steps:,}",
        f"fewer --updates-per-step than {config.agent.updates_per_step:g}",
        *(["a GPU"] if device.type == "cpu" else []),
    ]
