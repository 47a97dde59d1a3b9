"""How fast a run would be on this machine: the parts of a real trainer, timed in blocks."""

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

from playvirtual.bench.profiling import Kernels, Machine, machine, profile_updates
from playvirtual.config.schema import Config
from playvirtual.device import effective_precision, resolve_device
from playvirtual.envs import VectorEnv, VectorStep
from playvirtual.envs.env import ResetsInBackground
from playvirtual.errors import InputError
from playvirtual.messages import logger
from playvirtual.training.clock import Clock
from playvirtual.training.compiled.cudagraph import WARM_UPS
from playvirtual.training.trainer import Trainer

FILL = 300  # agent steps of random play in place of learning_starts, if that is more
BLOCK_S = 0.2  # how long a block of updates should take, so that the clock's resolution does not matter
LOOP_S = 2.0  # how long each pass over whole agent steps should take
MOST = 500  # updates in a block, agent steps in a pass
REACHED = 20_000  # updates, of which a measurement makes no more
REPEATS = 15


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over blocks."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True)
class Loop:
    """Whole agent steps: acting, environment and updates."""

    steps: int  # that were timed
    steps_per_s: float  # as in a run: the host plays while the device learns
    environment: float  # shares of the time, from a second pass in which the host waits for the device
    acting: float  # choosing the action, copying observations and actions, storing
    update: float


@dataclass(frozen=True)
class Measurement:
    """The result of `measure` for one configuration on one machine."""

    machine: Machine
    task: str
    method: str
    precision: str  # as it was used: the CPU always has fp32 and "off"
    compile: str
    batch_size: int
    K: int
    M: str
    updates_per_step: float
    fill: int  # agent steps of random play in the replay
    first_update_s: float  # seconds of updates until every kind of update is compiled and captured
    blocks: int
    block_updates: int
    update_ms: Spread
    updates_per_s: float  # 1000 / median
    gpu_gib: float | None  # peak of the memory in tensors; None on the CPU
    gpu_reserved_gib: float | None  # peak of the memory that PyTorch reserved
    rss_gib: float  # peak of the process
    loop: Loop | None
    kernels: Kernels | None


@dataclass(frozen=True)
class Prepared:
    """A trainer whose next update is an ordinary one: replay filled, kernels compiled, graphs captured."""

    trainer: Trainer
    fill: int
    first_update_s: float


def bench(config: Config, *, repeats: int = REPEATS) -> Measurement:
    """Builds the run's parts, warms them up and measures updates, whole steps, memory and kernels."""
    check_repeats(repeats)
    prepared = prepare(config)
    with closing(prepared.trainer):
        return measure(prepared, repeats=repeats)


def check_repeats(repeats: int) -> None:
    """Refuses a number of blocks that has no quartiles."""
    if repeats < 2:
        raise InputError(f"repeats: {repeats} is not allowed; allowed: 2 or more")


def prepare(config: Config) -> Prepared:
    """A trainer after its warm-up, which the caller closes."""
    _check(config)
    device = resolve_device(config.device)
    if device.type == "cuda":
        torch.cuda.init()  # before it there are no statistics to reset
        torch.cuda.reset_peak_memory_stats(device)
    fill = min(config.replay.learning_starts, FILL)
    trainer = Trainer(replace(config, replay=replace(config.replay, learning_starts=fill)))
    try:
        logger.info(f"playing {fill} random steps")
        trainer.train(fill - 1)  # the next step has the first update
        how = {"off": "", "cudagraph": ", capturing", "full": ", compiling (a minute or two)"}[compile_mode(trainer)]
        logger.info(f"first updates{how}")
        return Prepared(trainer, fill, _warm_up(trainer))
    except BaseException:
        trainer.close()
        raise


def _check(config: Config) -> None:
    """Refuses a configuration in which there is nothing to time."""
    if config.agent.updates_per_step < 0.01:
        raise InputError(
            f"updates_per_step: {config.agent.updates_per_step} leaves nothing to measure; allowed: 0.01 or more"
        )
    least = FILL * config.frames_per_step
    if config.steps < least:
        raise InputError(f"steps: {config.steps} is too short a run to measure; allowed: {least} or more")
    if config.replay.capacity < FILL:
        raise InputError(f"capacity: {config.replay.capacity} is too little to measure; allowed: {FILL} or more")


def compile_mode(trainer: Trainer) -> str:
    """The option `compile` as it takes effect: on the CPU it is "off"."""
    return trainer.config.compile if trainer.device.type == "cuda" else "off"


def _warm_up(trainer: Trainer) -> float:
    """Trains until every kind of update has its final form; returns the seconds spent in updates."""
    rounds = WARM_UPS + 2 if compile_mode(trainer) != "off" else 1  # warm-ups, the capture, one replay
    clock = trainer.clock = Clock(synchronize=trainer.device)
    pattern, period = trainer.agent.update_pattern, _timed_period(trainer)
    while trainer.learner.updates < rounds * period:
        trainer.train(1)
    # A copy to a target network can be due every thousands of updates: those are not trained until it is.
    often = {pattern.kind(update) for update in range(period)}
    with clock.measure("update"):
        for kind in sorted({pattern.kind(update) for update in range(min(pattern.period, REACHED))} - often):
            for _ in range(rounds):
                trainer.learner.launch(kind)
    trainer.clock = Clock()
    return clock.parts["update"]


def _timed_period(trainer: Trainer) -> int:
    """The updates after which the agent's pattern repeats, but for what is due too rarely to count in the time."""
    return trainer.agent.update_pattern.period_within(MOST)


def measure(prepared: Prepared, *, repeats: int = REPEATS, loop: bool = True, kernels: bool = True) -> Measurement:
    """Times updates in `repeats` blocks; with `loop` whole steps, with `kernels` a profile of the updates, too."""
    trainer, config = prepared.trainer, prepared.trainer.config
    device, period = trainer.device, _timed_period(trainer)
    logger.info("timing updates and whole steps" if loop else "timing updates")
    # Whole steps first: as in a run, no more updates have been made then than are due.
    looped = _time_loop(trainer) if loop else None
    one_period = _seconds(lambda: _make_updates(trainer, period), device)
    count = period * max(1, min(round(BLOCK_S / max(one_period, 1e-9)), MOST // period))
    blocks = [_seconds(lambda: _make_updates(trainer, count), device) / count * 1e3 for _ in range(repeats)]
    gpu, reserved, rss = _peak_memory(device)  # before the profiler, which needs some itself
    found = None
    if kernels:
        logger.info("profiling updates")
        profiled = period * (1 if one_period > BLOCK_S else 5)
        found = profile_updates(trainer.learner.update, profiled, device)
    spread = _spread(blocks)
    return Measurement(
        machine=machine(device),
        task=config.task,
        method=config.method,
        precision=effective_precision(device, config.precision),
        compile=compile_mode(trainer),
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


def _peak_memory(device: torch.device) -> tuple[float | None, float | None, float]:
    """Peaks so far in GiB: the GPU's in tensors and as reserved, and the process's."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if device.type != "cuda":
        return None, None, rss
    return torch.cuda.max_memory_allocated(device) / 2**30, torch.cuda.max_memory_reserved(device) / 2**30, rss


def _make_updates(trainer: Trainer, count: int) -> None:
    for _ in range(count):
        trainer.learner.update()


def _time_loop(trainer: Trainer) -> Loop:
    """Two passes over real steps: one at full speed, one that waits for the device to separate the parts."""
    # The fewest steps with a whole number of update periods: only multiples of them are fair to time.
    per_step = Fraction(trainer.config.agent.updates_per_step).limit_denominator(100)
    period = _timed_period(trainer)
    fewest = per_step.denominator * math.lcm(per_step.numerator, period) // per_step.numerator
    seconds = _seconds(lambda: trainer.train(fewest), trainer.device)
    steps = fewest * max(1, min(round(LOOP_S / max(seconds, 1e-9)), MOST // fewest))
    seconds = _seconds(lambda: trainer.train(steps), trainer.device)
    return Loop(steps, steps / seconds, *_shares(trainer, steps))


def _shares(trainer: Trainer, steps: int) -> tuple[float, float, float]:
    """Shares of environment, acting and updates in the time of `steps` agent steps, with waiting for the device."""
    env = TimedEnv(trainer.env.vector_env)
    clock = trainer.clock = Clock(synchronize=trainer.device)
    trainer.env.vector_env = env
    try:
        trainer.train(steps)
    finally:
        trainer.env.vector_env, trainer.clock = env.env, Clock()
    interacting, updating = clock.parts["environment"], clock.parts["update"]
    total = interacting + updating
    return env.seconds / total, (interacting - env.seconds) / total, updating / total


class TimedEnv:
    """The same environment, with the seconds spent in it."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.seconds = env, 0.0
        self.num_envs, self.frame_shape, self.action_space = env.num_envs, env.frame_shape, env.action_space

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> npt.NDArray[np.uint8]:
        before = time.perf_counter()
        frames = self.env.reset(indices, seeds)
        self.seconds += time.perf_counter() - before
        return frames

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        before = time.perf_counter()
        result = self.env.step(actions, indices)
        self.seconds += time.perf_counter() - before
        return result

    def prepare_reset(self, seed: int) -> None:
        if isinstance(self.env, ResetsInBackground):
            self.env.prepare_reset(seed)

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        return self.env.render(index)

    def close(self) -> None:
        self.env.close()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes until the device has finished it."""
    before = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - before


def _spread(values: Sequence[float]) -> Spread:
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)
