"""Agents in run folders: policy weights, loading an agent, and pretrained encoders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from playvirtual import envs
from playvirtual.agents.agent import Agent, load_policy_state_dict, make_agent
from playvirtual.config.schema import Config
from playvirtual.device import configure_torch, resolve_device
from playvirtual.envs.env import ActionSpace, describe_space, space_from_description
from playvirtual.errors import InputError
from playvirtual.options import leaves
from playvirtual.runs import checkpoint
from playvirtual.runs.checkpoint import Content
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.state import to_bytes, unflatten_state

WEIGHTS, RECORD = "weights.safetensors", "agent.json"  # what acting needs: a checkpoint and an export have them
POLICY_FILES = (WEIGHTS, RECORD)
STATE, STATE_TREE = "state.safetensors", "state.json"  # the state of training, which an export lacks


def policy_files(
    step: int, weights: Mapping[str, Tensor], observation_shape: Sequence[int], action_space: ActionSpace
) -> dict[str, Content]:
    """The files that `load_agent` needs: the policy weights and the shapes they belong to."""
    record = {"step": step, "observation_shape": list(observation_shape), "actions": describe_space(action_space)}
    return {
        WEIGHTS: to_bytes(dict(weights)),
        RECORD: (json.dumps(record, indent=2) + "\n").encode(),
    }


def policy_folder(folder: RunFolder) -> Path:
    """The folder with the policy weights: an export itself, or the newest undamaged checkpoint of a run."""
    return folder.path if folder.is_export else checkpoint.latest_valid(folder.path, POLICY_FILES)


def load_agent(config: Config, path: Path, device: str | torch.device) -> Agent:
    """An agent with the policy weights in a checkpoint or an export, ready to act.

    From then on this process computes in the configuration's precision and, on the CPU, with its number of threads.
    """
    chosen = resolve_device(device)
    observation_shape, action_space = read_shapes(path)
    weights = checkpoint.read_tensors(path, WEIGHTS)
    configure_torch(chosen, config.precision, config.threads)
    agent = make_agent(config, observation_shape, action_space, chosen, seed=0)
    load_policy_state_dict(agent, weights)
    return agent


def load_trained_agent(config: Config, path: Path, device: torch.device) -> Agent:
    """An agent with everything that training had in a checkpoint: all networks and the optimizers."""
    observation_shape, action_space = read_shapes(path)
    agent = make_agent(config, observation_shape, action_space, device, seed=0)
    state = read_agent_state(path)
    try:
        agent.load_state_dict(state)
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise _unusable(path, error) from None
    return agent


def read_agent_state(path: Path) -> dict[str, Any]:
    """The `state_dict` of the agent in a checkpoint."""
    tensors = checkpoint.read_tensors(path, STATE)
    try:
        record = json.loads(checkpoint.read(path, STATE_TREE))
        state: dict[str, Any] = unflatten_state(record["tree"], tensors)["agent"]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(path, error) from None
    return state


def _unusable(path: Path, error: Exception) -> InputError:
    return InputError(f"checkpoint: {str(path)!r} cannot be used ({' '.join(str(error).split())})")


def read_shapes(path: Path) -> tuple[tuple[int, int, int], ActionSpace]:
    """The observation shape and the action space of an agent, without reading its weights."""
    record = _read_record(path)
    c, h, w = record["observation_shape"]
    return (c, h, w), space_from_description(record["actions"])


def read_step(path: Path) -> int:
    """The global step at which the agent was saved."""
    return int(_read_record(path)["step"])


def _read_record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(checkpoint.read(path, RECORD))
    return record


# The options that must be equal for encoders with the same weights to be the same function.
ENCODER_OPTIONS = frozenset(
    (
        "frame_stack",
        "stack_fill",
        "image_size",
        "grayscale",
        "channels",
        "kernel_sizes",
        "strides",
        "latent",
        "encoder_tanh",
        "crop_size",
    )
)


def check_encoder_from(config: Config) -> None:
    """Raises unless `encoder_from` is a run whose encoder has the same inputs and layers as this configuration's."""
    source = Path(config.encoder_from)
    try:
        theirs = RunFolder.open(source).config()
        checkpoint.newest(source)
    except InputError as error:
        raise InputError(f"encoder_from: {error}") from None
    same_family = envs.family(config.task) == envs.family(theirs.task)
    if not same_family or type(config.agent) is not type(theirs.agent):
        raise InputError(
            f"encoder_from: {str(source)!r} learned {theirs.task}; allowed: a run of {config.task} or one of its kind"
        )
    pairs = zip(leaves(theirs), leaves(config), strict=True)
    differ = [
        f"{f.name}: {a} there, {b} here" for (f, _, a), (_, _, b) in pairs if f.name in ENCODER_OPTIONS and a != b
    ]
    if differ:
        raise InputError(
            f"encoder_from: {str(source)!r} has another encoder ({'; '.join(differ)}); allowed: a run with the same"
        )


def load_pretrained_encoder(agent: Agent, source: str) -> None:
    """Copies the encoder of a run's newest undamaged checkpoint into the agent's encoder and its target."""
    folder = RunFolder.open(source)
    path = checkpoint.latest_valid(folder.path, (RECORD, STATE_TREE, STATE))
    trained = load_trained_agent(folder.config(), path, agent.device)
    if "encoder" not in agent.parts or "encoder" not in trained.parts:
        raise InputError("encoder_from: an agent without a part 'encoder' has none to load; allowed: rainbow, sac")
    weights = trained.parts["encoder"].state_dict()
    if _shapes(weights) != _shapes(agent.parts["encoder"].state_dict()):
        raise InputError(
            f"encoder_from: the encoder in {str(path)!r} has other shapes than this task's; allowed: a run whose "
            "observations have the same channels and size"
        )
    for name in ("encoder", "target_encoder"):
        if name in agent.parts:
            agent.parts[name].load_state_dict(weights)


def _shapes(weights: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}
