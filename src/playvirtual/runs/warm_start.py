"""Warm starts: a new run whose networks begin with the weights of another run or of an export (`init_from`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from playvirtual.agents.agent import Agent
from playvirtual.config import registry
from playvirtual.config.schema import Config
from playvirtual.errors import InputError
from playvirtual.messages import logger
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import RECORD, STATE, STATE_TREE, WEIGHTS, load_trained_agent
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.state import all_finite

TARGETS = ("target_", "momentum_")  # a part of such a name follows the part of the rest of the name


def check_init_from(config: Config) -> None:
    """Raises unless `init_from` is a run, or an export, of the agent that this configuration has."""
    try:
        theirs = RunFolder.open(config.init_from).config()
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
    own, other = registry.agent_of(config.agent).name, registry.agent_of(theirs.agent).name
    if own != other:
        raise InputError(
            f"init_from: {config.init_from!r} has the agent {other!r}; allowed: a run of the agent {own!r}, as this one"
        )


def load_initial_weights(agent: Agent, source: str) -> None:
    """Copies every network that both have; others stay new, and a message names them.

    Optimizers, replay, counters and schedules are not touched, and nothing is drawn.
    """
    try:
        found = _weights(RunFolder.open(source), agent)
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
    for part, module in agent.parts.items():
        if part in found:
            _check_shapes(source, part, found[part], module.state_dict())
            module.load_state_dict(found[part])
    copied = _copy_between_targets(agent, found)
    if missing := [part for part in agent.parts if part not in found and part not in copied]:
        logger.info(f"init_from: {source!r} has no {', '.join(missing)}, which start with new weights")


def _copy_between_targets(agent: Agent, loaded: Collection[str]) -> list[str]:
    """Makes target networks without loaded weights copies of the networks that have some, and the reverse.

    Returns the names of the copies. SAC's export has the convolutions, which are a part of its encoder and so of its
    critic; that of an agent which acts by its target networks has these alone.
    """
    parts = agent.parts
    learned = {id(p) for part in loaded for p in parts[part].parameters()}
    copied = []
    for target in parts:
        online = next((target.removeprefix(prefix) for prefix in TARGETS if target.startswith(prefix)), "")
        if online not in parts:
            continue
        if target in loaded and online not in loaded:
            parts[online].load_state_dict(parts[target].state_dict())
            copied.append(online)
        elif target not in loaded and any(id(p) in learned for p in parts[online].parameters()):
            parts[target].load_state_dict(parts[online].state_dict())
            copied.append(target)
    return copied


def _weights(folder: RunFolder, agent: Agent) -> dict[str, Mapping[str, Tensor]]:
    """Part → name → weights of a run's newest undamaged checkpoint, or of an export."""
    if not folder.is_export:
        path = checkpoint.latest_valid(folder.path, (RECORD, STATE_TREE, STATE))
        trained = load_trained_agent(folder.config(), path, agent.device)
        return {part: module.state_dict() for part, module in trained.parts.items() if part in agent.parts}
    tensors = checkpoint.read_tensors(folder.path, WEIGHTS)
    if not all_finite(tensors):
        raise InputError(f"{str(folder.path / WEIGHTS)!r} cannot be used (not all of its weights are finite)")
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, own = name.partition(".")
        if part in agent.parts:
            found.setdefault(part, {})[own] = value
    return dict(found)


def _check_shapes(source: str, part: str, theirs: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raises an InputError that names the first tensor that one of the two lacks, or that has another shape."""
    for name in [*own, *theirs]:
        here, there = (tuple(w[name].shape) if name in w else None for w in (own, theirs))
        if here != there:
            words = [f"of shape {shape}" if shape is not None else "missing" for shape in (there, here)]
            raise InputError(
                f"init_from: {source!r}: {part}.{name} is {words[0]} there and {words[1]} here; allowed: a run whose "
                "networks have the same sizes"
            )
