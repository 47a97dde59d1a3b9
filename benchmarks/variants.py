"""What one way to compute an update comes to: its losses, its gradients, what a whole update changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.method import kernels
from playvirtual.presets import build
from playvirtual.training.capture import WARM_UPS
from playvirtual.training.loop import Training

FILL = 150  # agent steps of random play the batch is drawn from
FULL = 10**6  # a step at which λ_cyc has its full weight, so that no gradient is hidden by a small one
# Small enough to compile for a CPU in seconds; a feature map for a latent, as on Atari.
SMALL: dict[str, dict[str, Any]] = {
    "toy/catch": {"latent": 0, "K": 2, "M": "1", "batch_size": 32, "hidden": 32},
    "toy/reach": {"K": 2, "M": "1", "batch_size": 16, "auxiliary_batch_size": 8},
}


@dataclass(frozen=True)
class Variant:
    """One way to compute the same losses: in which precision, compiled or not, with hand-written kernels or not."""

    name: str
    precision: str = "fp32"  # or fp64, for the eager one alone
    compiled: bool = False
    fused: bool = False


@contextmanager
def hand_written(wanted: bool) -> Iterator[None]:
    """Hand-written kernels on or off inside the block; on, as they are, after it."""
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

    inputs: tuple[Tensor, ...]  # weights, batch and draws: the same for all
    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]  # one vector per network part


def filled(task: str, device: torch.device, precision: str, *, capture: str = "off", K: int | None = None) -> Training:
    """A training at its first update, with real play in its replay and λ_cyc at its maximum."""
    options = SMALL.get(task, {}) | {"precision": precision, "capture": capture, "device": str(device)}
    options |= {} if K is None else {"K": K}
    training = Training(build(task, **options, min_size=FILL, steps=100 * FILL))
    while training.step < FILL:
        training.interact()
    training.learner.schedule.set(FULL)
    return training


def compute(task: str, device: torch.device, variant: Variant, K: int | None = None) -> Outcome:
    """Losses and gradients of the first batch, with the task's own K or another."""
    torch._dynamo.reset()
    exact = variant.precision == "fp64"
    precision = "fp32" if exact else variant.precision  # the same weights and draws, to go on with in float64
    with hand_written(variant.fused), closing(filled(task, device, precision, K=K)) as training:
        agent: Any = training.agent
        if variant.compiled:
            agent.compile()
        batch = training.source.sample(training.learner.schedule)
        if isinstance(agent, Rainbow):
            agent.head.resample(agent.generator)
        draws = agent.draw(batch)
        inputs = tuple(t.detach().clone() for t in tensors((agent.weights(), batch, draws)))
        bf16 = agent.bf16 = variant.precision == "bf16"  # also on the CPU, where an agent does not choose it by itself
        if exact:
            _widen(agent)
            batch, draws = _wide(batch), _wide(draws)
        passes = (_rainbow if isinstance(agent, Rainbow) else _sac)(training, batch, draws)
        losses: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        with default_type(torch.float64 if exact else torch.float32):
            for forward, objective, parts in passes:
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    found = forward()
                total = objective(found)
                losses |= {name: value.detach().double().flatten().cpu() for name, value in found.items()}
                gradients |= _gradients(total, parts)
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


def _widen(agent: Rainbow | Sac) -> None:
    """Makes every weight of an agent float64, with the value that it has."""
    if isinstance(agent, Sac):
        modules = list(agent.modules().values())
        agent.log_alpha.data = agent.log_alpha.data.double()
    else:
        modules = [agent.online, agent.target_encoder, agent.target_head]
        agent.support = agent.support.double()
    for module in modules:
        module.double()


def _wide(tree: Any) -> Any:
    """Nested tuples with every floating-point tensor in float64."""
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, tuple):
        parts = [_wide(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


# The agents' private names are the functions that `compile` replaces: what an update calls.
def _rainbow(training: Training, batch: Any, draws: Any) -> Iterator[tuple[Any, Any, dict[str, list[nn.Parameter]]]]:
    agent, schedule = training.agent, training.learner.schedule
    assert isinstance(agent, Rainbow)

    def forward() -> dict[str, Tensor]:
        loss, recorded = agent._objective(batch, draws, schedule.lambda_cyc)
        return {"loss": loss, **{name: value for name, value in recorded.items() if not name.startswith("q")}}

    yield forward, lambda found: found["loss"], _parts(agent.online)


def _sac(training: Training, batch: Any, draws: Any) -> Iterator[tuple[Any, Any, dict[str, list[nn.Parameter]]]]:
    agent, schedule = training.agent, training.learner.schedule
    assert isinstance(agent, Sac)
    assert agent.auxiliary is not None

    def auxiliary(losses: dict[str, Tensor]) -> Tensor:
        return agent.objective.lambda_pred * losses["pred"].mean() + schedule.lambda_cyc * losses["cyc"].mean()

    critic, actor = _parts(agent.critic), {"actor": [*agent.actor.parameters()], "alpha": [agent.log_alpha]}
    learned = {"encoder (aux)": [*agent.encoder.parameters()], **_parts(agent.auxiliary.online)}
    yield lambda: agent._critic_losses(batch.transitions, draws), lambda found: found["critic"].mean(), critic
    yield lambda: agent._auxiliary_losses(batch.windows, draws.auxiliary), auxiliary, learned
    yield (
        lambda: agent._actor_losses(batch.transitions, draws),
        lambda found: found["actor"].mean() + found["alpha"].mean(),
        actor,
    )


def _parts(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    return {name: [*part.parameters()] for name, part in module.named_children()}


def _gradients(total: Tensor, parts: Mapping[str, list[nn.Parameter]]) -> dict[str, Tensor]:
    wanted = [p for parameters in parts.values() for p in parameters]
    found = iter(torch.autograd.grad(total, wanted, materialize_grads=True))
    return {name: _flat(next(found) for _ in parameters) for name, parameters in parts.items()}


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and mappings."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | Mapping):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(part)


class Contents(NamedTuple):
    """What an update has changed: one vector for each part of each kind."""

    moments: dict[str, Tensor]  # Adam's first, which are linear in the gradients; its counts; priorities
    parameters: dict[str, Tensor]


class Repeated(NamedTuple):
    """One update, made three times of the same state."""

    phase: int
    before: Contents
    eager: Contents
    again: Contents
    captured: Contents


def repeated(task: str, device: torch.device, *, fused: bool = False, K: int | None = None) -> Iterator[Repeated]:
    """Each kind of update: twice step by step and once as the launch that it has been captured into.

    On a CPU nothing is captured and all three are step by step.
    """
    with hand_written(fused), closing(filled(task, device, "fp32", capture="graph", K=K)) as training:
        learner, phases = training.learner, training.agent.phases
        for _ in range(phases * (WARM_UPS + 1)):
            learner.update()
        start = training.generator.get_state(), [(t, t.clone()) for t in tensors(_lasting(training))]
        before = _contents(training)
        for phase in sorted({training.agent.kind(update) for update in range(phases)}):
            found = []
            for update in (learner._work, learner._work, learner._launch):
                _restore(training, *start)
                update(phase)
                found.append(_contents(training))
            yield Repeated(phase, before, *found)


def _lasting(training: Training) -> tuple[dict[str, Any], ...]:
    """Everything that an update leaves to the next but the generator, by reference."""
    return training.agent.state_dict(), training.learner.state_dict(), training.source.state_dict()


@torch.no_grad()
def _restore(training: Training, generator: Tensor, kept: list[tuple[Tensor, Tensor]]) -> None:
    """Puts everything back in place: a captured update knows addresses."""
    training.generator.set_state(generator)
    for tensor, value in kept:
        tensor.copy_(value)


def _contents(training: Training) -> Contents:
    agent: Any = training.agent
    if isinstance(agent, Sac):
        modules, adams = agent.modules().items(), agent.optimizers
    else:
        modules, adams = agent.online.named_children(), {"adam": agent.optimizer}
    moments = {name: _flat(adam.state[p]["exp_avg"] for p in _learning(adam)) for name, adam in adams.items()}
    moments["counts"] = _flat(adam.state[p]["step"] for adam in adams.values() for p in _learning(adam))
    moments |= {name: _flat([t]) for name, t in training.source.state_dict().items() if isinstance(t, Tensor)}
    return Contents(moments, {name: _flat(module.parameters()) for name, module in modules})


def _learning(adam: torch.optim.Adam) -> list[Tensor]:
    return [p for group in adam.param_groups for p in group["params"] if p in adam.state]


def _flat(parts: Iterable[Tensor]) -> Tensor:
    """One vector in float64 on the host, a copy."""
    return torch.cat([part.detach().double().flatten() for part in parts]).cpu()
