"""Variants of one update (eager, compiled, fused, by precision): its losses, its gradients, and what it changes."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from playvirtual import kernels
from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.config.build import build
from playvirtual.training.compiled.compiling import compiling
from playvirtual.training.compiled.cudagraph import WARM_UPS
from playvirtual.training.trainer import Trainer

FILL = 150  # agent steps of random play the batch is drawn from
FULL = 10**6  # a step at which λ_cyc has its full weight, so that the cycle loss shows in every gradient
# Small enough to compile on a CPU in seconds; in toy/catch the latent is a feature map, as on Atari.
SMALL: dict[str, dict[str, Any]] = {
    "toy/catch": {"latent": 0, "K": 2, "M": "1", "batch_size": 32, "hidden": 32},
    "toy/reach": {"K": 2, "M": "1", "batch_size": 16, "auxiliary_batch_size": 8},
}


@dataclass(frozen=True)
class Variant:
    """One way to compute the same losses: precision, compiled or not, with hand-written kernels or not."""

    name: str
    precision: str = "fp32"  # or fp64, for the eager one alone
    compiled: bool = False
    fused: bool = False


@contextmanager
def hand_written(wanted: bool) -> Iterator[None]:
    """Turns hand-written kernels on or off inside the block, and on again after it."""
    kernels.use_fused(wanted)
    try:
        yield
    finally:
        kernels.use_fused(True)


def missing(variant: Variant, device: torch.device) -> str | None:
    """Why a variant cannot be computed here; None if it can."""
    if variant.precision == "tf32" and device.type == "cpu":
        return "a CPU has no tf32"
    if variant.compiled and device.type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        return "no C++ compiler"
    if variant.fused and device.type == "cpu":
        return "the fused kernels are for GPUs"
    if variant.fused and not kernels.AVAILABLE:
        return "Triton is not installed"
    return None


@dataclass(frozen=True)
class Outcome:
    """What one variant computed."""

    inputs: tuple[Tensor, ...]  # weights, batch and random inputs: the same for all variants
    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]  # one vector per network part


def filled(task: str, device: torch.device, precision: str, *, compile: str = "off", K: int | None = None) -> Trainer:
    """A trainer before its first update, with recorded play in its replay buffer and λ_cyc at its maximum."""
    options = SMALL.get(task, {}) | {"precision": precision, "compile": compile, "device": str(device)}
    options |= {} if K is None else {"K": K}
    trainer = Trainer(build(task, **options, learning_starts=FILL, steps=100 * FILL))
    torch.backends.cudnn.benchmark = False  # cuDNN's search takes minutes in fp32 and fp64 on DMControl
    trainer.train(FILL - 1)
    trainer.learner.schedule.set(FULL)
    return trainer


def compute(task: str, device: torch.device, variant: Variant, K: int | None = None) -> Outcome:
    """Losses and gradients of the first batch, with the task's own K or another."""
    torch._dynamo.reset()
    exact = variant.precision == "fp64"
    precision = "fp32" if exact else variant.precision  # the same weights and random inputs, widened to float64 below
    with hand_written(variant.fused), closing(filled(task, device, precision, K=K)) as trainer:
        agent: Any = trainer.agent
        batch = trainer.sampler.sample(trainer.learner.schedule)
        if isinstance(agent, Rainbow):
            agent.head.resample(agent.generator)
        randoms = agent.draw(batch)
        weights = {name: part.state_dict() for name, part in agent.parts.items()}
        inputs = tuple(t.detach().clone() for t in tensors((weights, batch, randoms)))
        if variant.compiled:  # after the random inputs, which compiled code may round otherwise
            agent.compile()
        agent.bf16 = variant.precision == "bf16"  # also on the CPU, where an agent uses fp32 otherwise
        if exact:
            widen(agent)
            batch, randoms = wide(batch), wide(randoms)
        passes = (_rainbow if isinstance(agent, Rainbow) else _sac)(trainer, batch, randoms)
        losses: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        with default_type(torch.float64 if exact else torch.float32), compiling():
            for forward, objective, parts in passes:
                found = forward()
                total = objective(found)
                losses |= {name: value.detach().double().flatten().cpu() for name, value in found.items()}
                gradients |= gradients_of(total, parts)
        return Outcome(inputs, losses, gradients)


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """The type of new floating-point tensors inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def widen(agent: Rainbow | Sac) -> None:
    """Converts every weight of an agent to float64."""
    if isinstance(agent, Sac):
        modules = [agent.actor, agent.critic, agent.target_critic, agent.temperature, agent.auxiliary, agent.momentum]
    else:
        modules = [agent.online, agent.target_encoder, agent.target_head]
        agent.support = agent.support.double()
    for module in modules:
        module.double()


def wide(tree: Any) -> Any:
    """Nested tuples with every floating-point tensor in float64."""
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, tuple):
        parts = [wide(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


# The private attributes are the functions that `compile` replaces: what an update calls.
def _rainbow(trainer: Trainer, batch: Any, randoms: Any) -> Iterator[tuple[Any, Any, dict[str, list[nn.Parameter]]]]:
    agent, schedule = trainer.agent, trainer.learner.schedule
    assert isinstance(agent, Rainbow)

    def forward() -> dict[str, Tensor]:
        loss, metrics, priorities = agent._mean_loss(batch, randoms, schedule["lambda_cyc"])
        return {"loss": loss, **_losses(metrics), "priority": priorities}

    yield forward, lambda found: found["loss"], parts_of(agent.online)


def _sac(trainer: Trainer, batch: Any, randoms: Any) -> Iterator[tuple[Any, Any, dict[str, list[nn.Parameter]]]]:
    agent, schedule = trainer.agent, trainer.learner.schedule
    assert isinstance(agent, Sac)

    def named(total: str, found: tuple[Tensor, dict[str, Tensor]]) -> dict[str, Tensor]:
        loss, metrics = found
        return {total: loss, **_losses(metrics)}

    def critic() -> dict[str, Tensor]:
        return named("loss_critic", agent._mean_critic_loss(batch.transitions, randoms))

    def auxiliary() -> dict[str, Tensor]:
        found = agent._mean_auxiliary_loss(batch.sequences, randoms.auxiliary, schedule["lambda_cyc"])
        return named("loss_auxiliary", found)

    def actor() -> dict[str, Tensor]:
        return named("loss_actor_and_alpha", agent._mean_actor_loss(batch.transitions, randoms))

    yield critic, itemgetter("loss_critic"), parts_of(agent.critic)
    learned = {"encoder (aux)": [*agent.encoder.parameters()], **parts_of(agent.auxiliary)}
    yield auxiliary, itemgetter("loss_auxiliary"), learned
    learned = {"actor": [*agent.actor.parameters()], "alpha": [agent.log_alpha]}
    yield actor, itemgetter("loss_actor_and_alpha"), learned


def _losses(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The metrics without those of Q and of targets."""
    return {name: value for name, value in metrics.items() if not name.startswith(("q", "target"))}


def parts_of(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of a network by the names of its parts."""
    return {name: [*part.parameters()] for name, part in module.named_children()}


def gradients_of(total: Tensor, parts: Mapping[str, list[nn.Parameter]]) -> dict[str, Tensor]:
    """The gradient of a loss as one vector per part."""
    wanted = [p for parameters in parts.values() for p in parameters]
    found = iter(torch.autograd.grad(total, wanted, materialize_grads=True))
    return {name: flat(next(found) for _ in parameters) for name, parameters in parts.items()}


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and mappings."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | Mapping):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(part)


class Contents(NamedTuple):
    """What an update changes, as one vector per part."""

    moments: dict[str, Tensor]  # Adam's first, which are linear in the gradients; its counts; priorities
    parameters: dict[str, Tensor]


class RepeatedUpdate(NamedTuple):
    """One update, made three times from the same state."""

    kind: int
    before: Contents
    eager: Contents
    repeated: Contents  # eagerly once more
    replayed: Contents  # by the CUDA graph


def repeat_updates(
    task: str, device: torch.device, *, fused: bool = False, K: int | None = None
) -> Iterator[RepeatedUpdate]:
    """Makes each kind of update twice eagerly and once by its CUDA graph; on a CPU, three times eagerly."""
    with hand_written(fused), closing(filled(task, device, "fp32", compile="cudagraph", K=K)) as trainer:
        learner, pattern = trainer.learner, trainer.agent.update_pattern
        for _ in range(pattern.period * (WARM_UPS + 1)):
            learner.update()
        kept = [(t, t.clone()) for t in tensors(_lasting(trainer))]
        start = trainer.generator.get_state(), copy.deepcopy(trainer.sampler.state_dict()), kept
        before = _contents(trainer)
        for kind in sorted({pattern.kind(update) for update in range(pattern.period)}):
            found = []
            for update in (learner.run_update, learner.run_update, learner.launch):
                _restore(trainer, *start)
                update(kind)
                found.append(_contents(trainer))
            yield RepeatedUpdate(kind, before, *found)


def _lasting(trainer: Trainer) -> tuple[dict[str, Any], ...]:
    """Everything that an update changes but the states of generator and sampler, by reference."""
    return trainer.agent.state_dict(), trainer.learner.state_dict()


@torch.no_grad()
def _restore(trainer: Trainer, generator: Tensor, sampler: dict[str, Any], kept: list[tuple[Tensor, Tensor]]) -> None:
    """Writes the saved values in place, because a CUDA graph reads fixed addresses."""
    trainer.generator.set_state(generator)
    trainer.sampler.load_state_dict(sampler)
    for tensor, value in kept:
        tensor.copy_(value)


def _contents(trainer: Trainer) -> Contents:
    agent: Any = trainer.agent
    if isinstance(agent, Sac):
        modules = {name: getattr(agent, name) for name in ("actor", "critic", "target_critic", "auxiliary", "momentum")}
        adams = agent.optimizers
    else:
        modules, adams = dict(agent.online.named_children()), {"adam": agent.optimizer}
    moments = {name: flat(adam.state[p]["exp_avg"] for p in _learning(adam)) for name, adam in adams.items()}
    moments["counts"] = flat(adam.state[p]["step"] for adam in adams.values() for p in _learning(adam))
    moments |= {name: flat([t]) for name, t in trainer.sampler.state_dict().items() if isinstance(t, Tensor)}
    filled_parts = {name: [*module.parameters()] for name, module in modules.items()}
    return Contents(moments, {name: flat(parameters) for name, parameters in filled_parts.items() if parameters})


def _learning(adam: torch.optim.Adam) -> list[Tensor]:
    return [p for group in adam.param_groups for p in group["params"] if p in adam.state]


def flat(parts: Iterable[Tensor]) -> Tensor:
    """One vector in float64 on the host, a copy."""
    return torch.cat([part.detach().double().flatten() for part in parts]).cpu()
