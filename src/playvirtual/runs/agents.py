"""Agents in run folders: policy weights, loading an agent, and pretrained encoders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from playvirtual import envs, files
from playvirtual.agents.agent import (
    Agent,
    EncodesObservations,
    ExploresByStep,
    load_policy_state_dict,
    make_agent,
)
from playvirtual.config import registry
from playvirtual.config.schema import Config
from playvirtual.device import configure_torch, resolve_device
from playvirtual.envs.env import (
    ActionSpace,
    NativeSpace,
    describe_native_space,
    describe_space,
    space_from_description,
)
from playvirtual.envs.observations import ObservedParts, parts_from_description
from playvirtual.errors import InputError, out_of_memory, shown, shown_text
from playvirtual.options import LARGEST_INT, leaves
from playvirtual.runs import checkpoint
from playvirtual.runs.checkpoint import Content
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.portable import example
from playvirtual.runs.state import all_finite, to_bytes, unflatten_state

WEIGHTS, RECORD = "weights.safetensors", "agent.json"  # what acting needs: a checkpoint and an export have them
POLICY_FILES = (WEIGHTS, RECORD)
STATE, STATE_TREE = "state.safetensors", "state.json"  # the state of training, which an export lacks
# What building an agent, or loading a state into it, raises where the two do not belong together.
MISFITS = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
NATIVE_TYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8")
MOST_ACTIONS = 2**20  # discrete ones, or dimensions of continuous ones


def policy_files(
    step: int,
    weights: Mapping[str, Tensor],
    observation_shape: Sequence[int],
    action_space: ActionSpace,
    native_action_space: NativeSpace | None = None,
    observed_parts: Mapping[str, Any] | None = None,
) -> dict[str, Content]:
    """The files that `load_agent` needs: the policy weights and the shapes they belong to.

    `native_action_space` is the environment's own, where that is another one than the agent's. `observed_parts`
    describes observations that are a Dict of an image and vectors, see `ObservedParts.describe`.
    """
    record = {"step": step, "observation_shape": list(observation_shape), "actions": describe_space(action_space)}
    if native_action_space is not None and native_action_space != action_space:
        record["native_actions"] = describe_native_space(native_action_space)
    if observed_parts is not None:
        record["observed_parts"] = observed_parts
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
    if not all_finite(weights):
        raise InputError(f"checkpoint: {str(path / WEIGHTS)!r} cannot be used (not all of its weights are finite)")
    configure_torch(chosen, config.precision, config.threads)
    agent = _make_agent(config, path, observation_shape, action_space, chosen)
    with _refusing_misfits(path):
        load_policy_state_dict(agent, weights)
    if isinstance(agent, ExploresByStep):
        agent.explore_as_at(read_step(path))
    return agent


def load_trained_agent(config: Config, path: Path, device: torch.device) -> Agent:
    """An agent with everything that training had in a checkpoint: all networks and the optimizers."""
    observation_shape, action_space = read_shapes(path)
    agent = _make_agent(config, path, observation_shape, action_space, device)
    state = read_agent_state(path)
    with _refusing_misfits(path):
        agent.load_state_dict(state)
    return agent


def _make_agent(
    config: Config, path: Path, observation_shape: tuple[int, int, int], space: ActionSpace, device: torch.device
) -> Agent:
    """An untrained agent of the shapes in a checkpoint, which need not fit the configuration."""
    with _refusing_misfits(path):
        return make_agent(config, observation_shape, space, device, seed=0)


def read_agent_state(path: Path) -> dict[str, Any]:
    """The `state_dict` of the agent in a checkpoint."""
    with _refusing_misfits(path):
        return files.as_record(files.as_record(read_state(path).state)["agent"])


class TrainingState(NamedTuple):
    """What a checkpoint holds of training beside the replay's frames."""

    state: Any  # as `flatten_state` was given it
    log_sizes: dict[str, int]  # bytes of each JSONL log
    clock: dict[str, float]  # seconds by part
    config: dict[str, Any]  # the options, but those that may change; unchecked, and empty before they were recorded


def read_state(path: Path) -> TrainingState:
    """The state of training in a checkpoint."""
    tensors = checkpoint.read_tensors(path, STATE)
    with _refusing_misfits(path):
        record = files.as_record(files.parse_json(checkpoint.read(path, STATE_TREE)))
        return TrainingState(
            unflatten_state(files.entry(record, "tree"), tensors),
            {k: files.as_whole(v, k) for k, v in files.as_record(files.entry(record, "positions")).items()},
            {k: files.as_number(v, k) for k, v in files.as_record(files.entry(record, "clock")).items()},
            files.as_record(record.get("config", {})),
        )


@contextmanager
def _refusing_misfits(path: Path) -> Iterator[None]:
    """Turns whatever a checkpoint that does not fit its agent raises into one line."""
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except MISFITS as error:
        raise unusable(path, error) from None


def unusable(path: Path, error: Exception) -> InputError:
    """The error for a checkpoint whose files are undamaged and do not belong to this run."""
    if out_of_memory(error) is not None:
        raise error
    # PyTorch's message about a state that does not fit has many lines.
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"checkpoint: {str(path)!r} cannot be used ({shown_text(reason)})")


def read_shapes(path: Path) -> tuple[tuple[int, int, int], ActionSpace]:
    """The observation shape and the action space of an agent, without reading its weights."""
    record = _read_record(path)
    return record.observation_shape, record.action_space


def read_native_action_space(path: Path) -> NativeSpace:
    """The action space that the environment itself declared."""
    return _read_record(path).native_action_space


def read_observed_parts(path: Path) -> ObservedParts | None:
    """The image and the vectors of the environment's observations, where these are a Dict."""
    return _read_record(path).observed_parts


def read_step(path: Path) -> int:
    """The global step at which the agent was saved."""
    return _read_record(path).step


class PolicyRecord(NamedTuple):
    """What agent.json says."""

    step: int
    observation_shape: tuple[int, int, int]
    action_space: ActionSpace
    native_action_space: NativeSpace  # the environment's own
    observed_parts: ObservedParts | None  # of observations that are a Dict


def _read_record(path: Path) -> PolicyRecord:
    """The content of agent.json, checked."""
    try:
        record = files.as_record(files.parse_json(checkpoint.read(path, RECORD)))
        step = files.as_whole(files.entry(record, "step"), "step")
        shape = files.as_numbers(files.entry(record, "observation_shape"), "observation_shape")
        if len(shape) != 3 or not all(size == int(size) >= 1 for size in shape) or math.prod(shape) > LARGEST_INT:
            raise ValueError(f"observation_shape: {shown(shape)} is not allowed; allowed: three sizes (C, H, W)")
        c, h, w = map(int, shape)
        space = _action_space(files.as_record(files.entry(record, "actions")))
        native = (
            _native_space(files.as_record(record["native_actions"]), space) if "native_actions" in record else space
        )
        described = record.get("observed_parts")
        parts = None if described is None else parts_from_description(files.as_record(described))
        return PolicyRecord(step, (c, h, w), space, native, parts)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"checkpoint: {str(path / RECORD)!r} cannot be used ({error})") from None


def _action_space(record: dict[str, Any]) -> ActionSpace:
    """The action space in agent.json."""
    if "n" in record:
        return space_from_description({"n": files.as_whole(record["n"], "n", 1, MOST_ACTIONS)})
    low, high = (files.as_numbers(files.entry(record, name), name) for name in ("low", "high"))
    bounds_fit = 1 <= len(low) == len(high) <= MOST_ACTIONS and all(a < b for a, b in zip(low, high, strict=True))
    if not bounds_fit or max(map(abs, low + high)) > LARGEST_INT:
        raise ValueError(f"low, high: {shown((low, high))} are not allowed; allowed: bounds of every action")
    return space_from_description({"low": low, "high": high})


def _native_space(record: dict[str, Any], space: ActionSpace) -> NativeSpace:
    """The environment's own action space in agent.json, to which the agent's actions must fit."""
    if isinstance(space, spaces.Discrete):
        start = files.as_whole(files.entry(record, "start"), "start", -LARGEST_INT, LARGEST_INT)
        return spaces.Discrete(files.as_whole(files.entry(record, "n"), "n", int(space.n), int(space.n)), start=start)
    low, high, shape = (files.as_numbers(files.entry(record, name), name) for name in ("low", "high", "shape"))
    sizes = tuple(int(size) for size in shape)
    kind = files.entry(record, "dtype")
    complete = len(low) == len(high) == math.prod(sizes) == math.prod(space.shape) and all(size > 0 for size in sizes)
    if kind not in NATIVE_TYPES or not complete or not all(a <= b for a, b in zip(low, high, strict=True)):
        raise ValueError(f"native_actions: {shown(record)} is not allowed; allowed: bounds of every action")
    with np.errstate(over="ignore"):
        least, most = (np.asarray(bound, np.float64).reshape(sizes).astype(kind) for bound in (low, high))
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        raise ValueError(f"native_actions: {shown(record)} is not allowed; allowed: bounds within {kind}")
    native: NativeSpace = spaces.Box(least, most, dtype=least.dtype)
    return native


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
        "background",
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
    own, other = registry.agent_of(config.agent), registry.agent_of(theirs.agent)
    if envs.family(config.task) != envs.family(theirs.task) or not own.actions & other.actions:
        raise InputError(
            f"encoder_from: {str(source)!r} learned {theirs.task}; allowed: a run of {config.task} or one of its kind"
        )
    if own.name != other.name:
        raise InputError(
            f"encoder_from: {str(source)!r} has the agent {other.name!r}; allowed: a run of the agent {own.name!r}, as "
            "this one"
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
    _check_same_states(agent, trained, path)


def _check_same_states(agent: Agent, trained: Agent, path: Path) -> None:
    """Raises unless two encoders with the same weights make the same state of an image, as far as agents encode one.

    Not all that decides the state is an option: some agents rescale it beside dynamics models alone.
    """
    if not (isinstance(agent, EncodesObservations) and isinstance(trained, EncodesObservations)):
        return
    image = example(agent, 1)
    if not torch.allclose(agent.encode(image), trained.encode(image), rtol=1e-2, atol=1e-4):
        raise InputError(
            f"encoder_from: the encoder in {str(path)!r} makes other states with the same weights here than there, "
            "where its agent may have rescaled them for its dynamics models (K > 0); allowed: a run of this method, or "
            "--method rl on a run of spr or playvirtual"
        )


def _shapes(weights: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}
