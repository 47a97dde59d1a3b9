"""What training needs of an agent: the contract, the update pattern, the schedules, and how an agent is made.

A new agent is one file with a class that fulfils `Agent` and one call of `playvirtual.register_agent`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from playvirtual.config import registry
from playvirtual.config.schema import Config
from playvirtual.device import check_memory, effective_precision
from playvirtual.errors import InputError, shown
from playvirtual.method import ActionSpace, action_space
from playvirtual.replay.buffer import ReplayBuffer
from playvirtual.replay.samplers import BatchSampler

COUNTERS = ("step", "episodes", "updates", "return")  # the keys of every line of metrics.jsonl
Observations = Tensor | npt.NDArray[np.uint8]  # (…, C, H, W) uint8


class Update(NamedTuple):
    """What one update tells training."""

    metrics: dict[str, Tensor]  # detached scalars; at least one begins with "loss", and those must be finite
    priorities: Tensor | None = None  # (B,) for the replay buffer, where it is prioritized


class Every(NamedTuple):
    """Due at the updates number `offset`, `offset` + `period`, …, counted from 0."""

    period: int
    offset: int = 0


class UpdatePattern:
    """Which parts of an agent the n-th update moves: UpdatePattern(actor=Every(2), target=Every(3, offset=2)).

    Updates that move the same parts do the same work and are captured as one CUDA graph.
    """

    def __init__(self, **parts: Every) -> None:
        for name, part in parts.items():
            if not 0 <= part.offset < part.period:
                raise ValueError(f"{name}: {part} is never due; allowed: an offset from 0 to period − 1")
        self._parts = parts
        self.period = math.lcm(1, *(part.period for part in parts.values()))  # the pattern repeats after so many
        self._kinds: dict[frozenset[str], int] = {}

    def period_within(self, most: int) -> int:
        """After how many updates the pattern repeats but for the parts that are due less often than every `most`."""
        return math.lcm(1, *(part.period for part in self._parts.values() if part.period <= most))

    def due(self, update: int) -> frozenset[str]:
        """The parts that update number `update` moves."""
        return frozenset(name for name, part in self._parts.items() if update % part.period == part.offset)

    def kind(self, update: int) -> int:
        """The number of the first update that does the same work as this one."""
        due = self.due(update)
        if due not in self._kinds:
            self._kinds[due] = next(first for first in range(self.period) if self.due(first) == due)
        return self._kinds[due]


class Schedule(Mapping[str, Tensor]):
    """Scalars that change with the step (λ_cyc, β, …), and which parts of the agent the present update moves.

    The scalars lie on the training device and are written in place, so that a captured update reads them.
    """

    def __init__(self, functions: Mapping[str, Callable[[int], float]], device: torch.device | str = "cpu") -> None:
        self._functions = functions
        self._values = {name: torch.zeros((), device=device) for name in functions}
        self.due: frozenset[str] = frozenset()
        self.set(0)

    def set(self, step: int) -> None:
        """Sets every scalar to its value at `step` in the configuration's `step_unit`."""
        for name, function in self._functions.items():
            self._values[name].fill_(function(step))

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Agent(Protocol):
    """What training needs of an agent; everything else about it stands in its own file."""

    device: torch.device
    generator: torch.Generator | None  # the source of everything random on the device
    observation_shape: tuple[int, int, int]
    update_pattern: UpdatePattern
    schedules: Mapping[str, Callable[[int], float]]  # name → value at a step; training logs them and fills `Schedule`

    @property
    def action_space(self) -> ActionSpace:
        """The actions that `act` chooses from."""
        ...

    @property
    def policy_parts(self) -> tuple[str, ...]:
        """The names among `parts` that acting needs: exports hold these alone."""
        ...

    def act(self, observation: Observations, explore: bool = False) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…) or (…, A) actions on the device."""
        ...

    def make_sampler(self, replay: ReplayBuffer, generator: torch.Generator) -> BatchSampler:
        """What draws the batches that `update` learns from."""
        ...

    def update(self, batch: Any, schedule: Schedule) -> Update:
        """One update; static shapes, never waits for the device, changes state in place."""
        ...

    def compile(self) -> None:
        """Replaces the losses by compiled ones, before the first update."""
        ...

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """The networks by name: "encoder", "forward_dynamics", …; for exports, probes and parameter counts."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave."""
        ...


@runtime_checkable
class EncodesObservations(Protocol):
    """An agent with a latent state, as probes of its dynamics model need it."""

    def encode(self, observation: Observations) -> Tensor:
        """(N, C, H, W) uint8 observations -> (N, …): f(s) of the images without augmentation."""
        ...


@runtime_checkable
class ValuesActions(Protocol):
    """An agent that has a value for every discrete action, as videos show them."""

    def action_values(self, observation: Observations) -> Tensor:
        """(…, C, H, W) uint8 observations -> (…, |A|): the expected return of each action."""
        ...


@runtime_checkable
class ResamplesNoise(Protocol):
    """An agent that explores by the noise of its layers, which stays the same until it is drawn again."""

    def resample_noise(self) -> None:
        """Draws new noise."""
        ...


@runtime_checkable
class ExploresByStep(Protocol):
    """An agent that explores the less the longer it has trained: its policy weights do not say how much."""

    def explore_as_at(self, step: int) -> None:
        """From now on `act` explores as in training at that step, in the configuration's `step_unit`."""
        ...


@runtime_checkable
class ResetsNetworks(Protocol):
    """An agent that makes networks, or parts of them, anew in the course of training."""

    def resets_before(self, update: int) -> bool:
        """Whether `reset` precedes update number `update`, counted from 0."""
        ...

    def reset(self, update: int) -> None:
        """Makes them anew before update number `update`, in place, from random numbers of the agent's generator; it
        may wait for the device."""
        ...


@runtime_checkable
class CountsReleasedParameters(Protocol):
    """An agent of the paper, whose parameters its tables count by what the released code declares."""

    def released_parameter_count(self) -> int | None:
        """The number in the paper's tables for this agent; None where the released code has no such networks."""
        ...


def make_agent(
    config: Config,
    observation_shape: tuple[int, int, int],
    space: Any,
    device: torch.device,
    seed: int,
    generator: torch.Generator | None = None,
) -> Agent:
    """An untrained agent of the configuration; `seed` decides its weights, the global random state stays as it was.

    `space` is the environment's action space, a Gymnasium Discrete or Box.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Triton launches on the current device, wherever its tensors are
    spec = registry.agent_of(config.agent)
    bf16 = effective_precision(device, config.precision) == "bf16"
    check_memory(device, {"networks": agent_size(config, observation_shape, space).weights})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        given = (config, observation_shape, action_space(space))
        make = _checked_call(spec, *given, device=device, generator=generator, bf16=bf16)
        agent: Agent = make(*given, device=device, generator=generator, bf16=bf16)
    _check_contract(agent, spec)
    return agent


def _checked_call(spec: registry.AgentSpec, *given: Any, **by_name: Any) -> Callable[..., Any]:
    """The agent's class; raises an InputError where it cannot be called as agents are."""
    make = spec.load()
    try:
        inspect.signature(make).bind(*given, **by_name)
    except TypeError as error:
        raise InputError(
            f"agent: {spec.name!r} cannot be made ({error}); allowed: a class that takes (config, observation_shape, "
            "action_space, device, generator, bf16)"
        ) from None
    return make


def _check_contract(agent: Agent, spec: registry.AgentSpec) -> None:
    """Raises an InputError that names what a registered agent lacks of `Agent`, or has of another kind."""
    wanted = (*Agent.__annotations__, *(name for name in vars(Agent) if not name.startswith("_")))
    if missing := [name for name in wanted if not hasattr(agent, name)]:
        raise InputError(f"agent: {spec.name!r} lacks {', '.join(missing)}; allowed: a class that fulfils `Agent`")
    if not isinstance(agent.parts, Mapping) or not all(isinstance(part, nn.Module) for part in agent.parts.values()):
        raise InputError(f"parts: a {type(agent.parts).__name__} of {spec.name!r}; allowed: a dict, name → nn.Module")
    if unknown_parts := [name for name in agent.policy_parts if name not in agent.parts]:
        raise InputError(
            f"policy_parts: {shown(unknown_parts[0])} of {spec.name!r} is not among its parts; allowed: "
            f"{', '.join(agent.parts)}"
        )
    for name, schedule in agent.schedules.items():
        if not callable(schedule):
            raise InputError(f"schedules: {name!r} is {shown(schedule)}; allowed: a function of the step")
        if name in COUNTERS:
            raise InputError(f"schedules: {name!r} is in every line of metrics; allowed: another name")


class AgentSize(NamedTuple):
    """What an agent would take, found out without taking it; zeros where an agent does not let it be found out."""

    weights: int = 0  # bytes of all networks
    learned: int = 0  # bytes of the parameters that learn
    latent: int = 0  # numbers of a latent state


def agent_size(config: Config, observation_shape: tuple[int, int, int], space: Any) -> AgentSize:
    """The size of an agent, which is built on PyTorch's device "meta", where tensors have shapes and no content."""
    meta = torch.device("meta")
    try:
        with torch.random.fork_rng(devices=[]), meta:
            agent: Agent = registry.agent_of(config.agent).load()(
                config, observation_shape, action_space(space), device=meta, generator=None, bf16=False
            )
            image = torch.empty((1, *observation_shape), dtype=torch.uint8)
            latent = agent.encode(image).numel() if isinstance(agent, EncodesObservations) else 0
            tensors = {id(t): t for part in agent.parts.values() for t in (*part.parameters(), *part.buffers())}
    except Exception:  # a registered agent may not be built there; any other error it raises where it is really built
        return AgentSize()
    sizes = [(t.numel() * t.element_size(), t.requires_grad) for t in tensors.values()]
    return AgentSize(sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns), latent)


def policy_state_dict(agent: Agent) -> dict[str, Tensor]:
    """The weights that acting needs, as part.name."""
    parts = {name: agent.parts[name] for name in agent.policy_parts}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()}


def load_policy_state_dict(agent: Agent, weights: Mapping[str, Tensor]) -> None:
    """Loads what `policy_state_dict` gave, for acting."""
    for part in agent.policy_parts:
        prefix = f"{part}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        agent.parts[part].load_state_dict(own)


def num_trainable_parameters(agent: Agent) -> int:
    """The parameters that learn, each counted once."""
    parameters = {id(p): p for part in agent.parts.values() for p in part.parameters()}
    return sum(p.numel() for p in parameters.values() if p.requires_grad)


def as_images(observation: Observations, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """(…, C, H, W) uint8 observations of the shape that an agent was made for, on its device."""
    allowed = f"allowed: uint8 of shape {shape}, or many of them"
    try:
        images = torch.as_tensor(observation)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"observation: {type(observation).__name__} is not allowed; {allowed}") from None
    if images.dtype != torch.uint8 or tuple(images.shape[-3:]) != shape:
        found = f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
        raise InputError(f"observation: {found} is not allowed; {allowed}")
    return images.to(device)
