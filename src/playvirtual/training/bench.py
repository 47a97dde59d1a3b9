"""How fast a run would be on this machine: its real parts, timed in blocks."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from playvirtual.config import Config
from playvirtual.envs import Environment, Step
from playvirtual.envs.protocol import Preparing
from playvirtual.errors import InputError
from playvirtual.training.arithmetic import precision_on
from playvirtual.training.capture import WARM_UPS
from playvirtual.training.devices import resolve
from playvirtual.training.loop import Training
from playvirtual.training.machine import Machine, machine
from playvirtual.training.profiling import Kernels, profile_updates

FILL = 300  # agent steps of random play in place of min_size, if that is more
BLOCK_S = 0.2  # what a block of updates should last, so that the clock's own grain does not count
LOOP_S = 2.0  # what each pass over whole agent steps should last
MOST = 500  # updates in a block, agent steps in a pass
REPEATS = 15

Say = Callable[[str], None]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over blocks."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True)
class Loop:
    """Whole agent steps, acting and learning."""

    steps: int  # that were timed
    steps_per_s: float  # as a run has it: the host goes on while the device learns
    environment: float  # shares of the time, from a second pass in which the host waits for the device
    acting: float  # choosing the action, copying pictures and actions, storing
    update: float


@dataclass(frozen=True)
class Measurement:
    """What `measure` found, for one configuration on one machine."""

    machine: Machine
    task: str
    method: str
    precision: str  # as it was used: the CPU always has fp32 and no capture
    capture: str
    batch_size: int
    K: int
    M: str
    updates_per_step: float
    fill: int  # agent steps of random play in the replay
    first_update_s: float  # until the update runs as it will from then on: compiled, captured
    blocks: int
    block_updates: int
    update_ms: Spread
    updates_per_s: float  # 1000 / median
    gpu_gib: float | None  # peak of what tensors held; None on the CPU
    gpu_reserved_gib: float | None  # peak of what PyTorch took from the card
    rss_gib: float  # peak of the process
    loop: Loop | None
    kernels: Kernels | None


@dataclass(frozen=True)
class Prepared:
    """A training whose next update is an ordinary one: replay filled, kernels compiled, graphs captured."""

    training: Training
    fill: int
    first_update_s: float


def silent(text: str) -> None:
    """Says nothing."""


def bench(config: Config, *, repeats: int = REPEATS, say: Say = silent) -> Measurement:
    """Builds the run's parts, warms them up and measures updates, whole steps, memory and kernels."""
    check_repeats(repeats)
    prepared = prepare(config, say=say)
    with closing(prepared.training):
        return measure(prepared, repeats=repeats, say=say)


def check_repeats(repeats: int) -> None:
    """Refuses a number of blocks that has no quartiles."""
    if repeats < 2:
        raise InputError(f"repeats: {repeats} is not allowed; allowed: 2 or more")


def prepare(config: Config, *, say: Say = silent) -> Prepared:
    """Everything up to the first ordinary update; the caller closes the training."""
    _check(config)
    device = resolve(config.device)
    if device.type == "cuda":
        torch.cuda.init()  # there are no statistics to reset before
        torch.cuda.reset_peak_memory_stats(device)
    fill = min(config.replay.min_size, FILL)
    training = Training(replace(config, replay=replace(config.replay, min_size=fill)))
    try:
        say(f"playing {fill} random steps")
        while training.step < fill - 1:  # the step that comes next is followed by an update
            training.interact()
        how = {"off": "", "graph": ", capturing", "compile": ", compiling (a minute or two)"}[_capture(training)]
        say(f"first updates{how}")
        return Prepared(training, fill, _warm_up(training))
    except BaseException:
        training.close()
        raise


def _check(config: Config) -> None:
    """Refuses a configuration in which there is nothing to time."""
    if config.agent.updates_per_step < 0.01:
        raise InputError(
            f"updates_per_step: {config.agent.updates_per_step} leaves nothing to measure; allowed: 0.01 or more"
        )
    least = FILL * config.unit
    if config.steps < least:
        raise InputError(f"steps: {config.steps} is too short a run to measure; allowed: {least} or more")
    if config.replay.capacity < FILL:
        raise InputError(f"capacity: {config.replay.capacity} is too little to measure; allowed: {FILL} or more")


def _capture(training: Training) -> str:
    return training.config.capture if training.agent.device.type == "cuda" else "off"


def _warm_up(training: Training) -> float:
    """Plays on until every phase of the update has its final form; seconds spent in the updates."""
    rounds = WARM_UPS + 2 if _capture(training) != "off" else 1  # warm-ups, the capture, one replay
    spent = 0.0
    while training.learner.updates < rounds * training.agent.phases:
        training.interact()
        spent += _seconds(training.learn, training.agent.device)
    return spent


def measure(
    prepared: Prepared, *, repeats: int = REPEATS, loop: bool = True, kernels: bool = True, say: Say = silent
) -> Measurement:
    """Times updates in `repeats` blocks; whole steps and kernels too unless told otherwise."""
    training, config = prepared.training, prepared.training.config
    device, phases = training.agent.device, training.agent.phases
    say("timing updates and whole steps" if loop else "timing updates")
    # Whole steps first: the loop owes no updates then, and makes them as a run does.
    looped = _loop(training) if loop else None
    one_round = _seconds(lambda: _updates(training, phases), device)
    count = phases * max(1, min(round(BLOCK_S / max(one_round, 1e-9)), MOST // phases))
    blocks = [_seconds(lambda: _updates(training, count), device) / count * 1e3 for _ in range(repeats)]
    gpu, reserved, rss = _memory(device)  # before the profiler, which takes some of its own
    found = None
    if kernels:
        say("profiling updates")
        profiled = phases * (1 if one_round > BLOCK_S else 5)
        found = profile_updates(training.learner.update, profiled, device)
    spread = _spread(blocks)
    return Measurement(
        machine=machine(device),
        task=config.task,
        method=config.method,
        precision=precision_on(device, config),
        capture=_capture(training),
        batch_size=config.agent.batch_size,
        K=config.objective.K,
        M=config.objective.M,
        updates_per_step=config.agent.updates_per_step,
        fill=prepared.fill,
        first_update_s=prepared.first_update_s,
        blocks=repeats,
        block_updates=count,
        update_ms=spread,
        updates_per_s=1e3 / spread.median,
        gpu_gib=gpu,
        gpu_reserved_gib=reserved,
        rss_gib=rss,
        loop=looped,
        kernels=found,
    )


def _memory(device: torch.device) -> tuple[float | None, float | None, float]:
    """Peaks so far in GiB: the GPU's in tensors and as reserved, and the process's."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if device.type != "cuda":
        return None, None, rss
    return torch.cuda.max_memory_allocated(device) / 2**30, torch.cuda.max_memory_reserved(device) / 2**30, rss


def _updates(training: Training, count: int) -> None:
    for _ in range(count):
        training.learner.update()


def _loop(training: Training) -> Loop:
    """Two passes over real steps: one as fast as it goes, one that waits for the device to tell parts apart."""
    device = training.agent.device
    # So many steps come with a whole number of rounds of updates, and are fair to time.
    per_step = Fraction(training.config.agent.updates_per_step).limit_denominator(100)
    unit = per_step.denominator * math.lcm(per_step.numerator, training.agent.phases) // per_step.numerator

    def play(steps: int) -> None:
        for _ in range(steps):
            training.advance()

    one_unit = _seconds(lambda: play(unit), device)
    steps = unit * max(1, min(round(LOOP_S / max(one_unit, 1e-9)), MOST // unit))
    seconds = _seconds(lambda: play(steps), device)
    shares = _shares(training, steps)
    return Loop(steps, steps / seconds, *shares)


def _shares(training: Training, steps: int) -> tuple[float, float, float]:
    """Shares of environment, acting and update in the time of `steps` agent steps, the device waited for."""
    device, timed = training.agent.device, TimedEnvironment(training.env)
    interacting = updating = 0.0
    training.env = timed
    try:
        for _ in range(steps):
            interacting += _seconds(training.interact, device)
            updating += _seconds(training.learn, device)
    finally:
        training.env = timed.env
    total = interacting + updating
    return timed.seconds / total, (interacting - timed.seconds) / total, updating / total


class TimedEnvironment:
    """The same environment, and the seconds spent in it."""

    def __init__(self, env: Environment) -> None:
        self.env, self.seconds = env, 0.0
        self.lanes, self.frame_shape, self.action_space = env.lanes, env.frame_shape, env.action_space

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> npt.NDArray[np.uint8]:
        before = time.perf_counter()
        frames = self.env.reset(lanes, seeds)
        self.seconds += time.perf_counter() - before
        return frames

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        before = time.perf_counter()
        result = self.env.step(actions)
        self.seconds += time.perf_counter() - before
        return result

    def prepare(self, seed: int) -> None:
        if isinstance(self.env, Preparing):
            self.env.prepare(seed)

    def picture(self, lane: int) -> npt.NDArray[np.uint8]:
        return self.env.picture(lane)

    def close(self) -> None:
        self.env.close()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes until the device is done with it."""
    before = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - before


def _spread(values: Sequence[float]) -> Spread:
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)
