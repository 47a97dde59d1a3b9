"""What one run takes over from another: its agent as trained, or the encoder alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playvirtual import envs
from playvirtual.config import Config, leaves
from playvirtual.errors import InputError
from playvirtual.training import checkpoint
from playvirtual.training.factory import Agent
from playvirtual.training.pack import unpack
from playvirtual.training.run_folder import RunFolder

# What an encoder of the same weights must share to be the same function.
ENCODING = frozenset(
    (
        "frame_stack",
        "stack_fill",
        "image_size",
        "grayscale",
        "channels",
        "filters",
        "strides",
        "latent",
        "encoder_tanh",
        "crop_size",
    )
)


def agent_state(folder: Path) -> dict[str, Any]:
    """The `state_dict` of the agent in a checkpoint's folder, with everything that training had."""
    tensors = checkpoint.read_tensors(folder, "state.safetensors")
    try:
        record = json.loads(checkpoint.read(folder, "state.json"))
        state: dict[str, Any] = unpack(record["tree"], tensors)["agent"]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"checkpoint: {str(folder)!r} cannot be used ({error})") from None
    return state


def check_source(config: Config) -> None:
    """Raises unless `encoder_from` is a run whose encoder sees and computes what this configuration's does."""
    source = Path(config.encoder_from)
    try:
        theirs = RunFolder.open(source).config()
        checkpoint.newest(source)
    except InputError as error:
        raise InputError(f"encoder_from: {error}") from None
    ours, other = (envs.family(c.task) for c in (config, theirs))
    if ours != other or type(config.agent) is not type(theirs.agent):
        raise InputError(
            f"encoder_from: {str(source)!r} learned {theirs.task}; allowed: a run of {config.task} or one of its kind"
        )
    pairs = zip(leaves(theirs), leaves(config), strict=True)
    differ = [f"{f.name}: {a} there, {b} here" for (f, _, a), (_, _, b) in pairs if f.name in ENCODING and a != b]
    if differ:
        raise InputError(
            f"encoder_from: {str(source)!r} has another encoder ({'; '.join(differ)}); allowed: a run with the same"
        )


def take_encoder(agent: Agent, source: Path) -> None:
    """Gives the agent the encoder of a run's newest sound checkpoint."""
    folder = checkpoint.newest_sound(source, ("state.json", "state.safetensors"))
    weights = agent.encoder_weights(agent_state(folder))
    wanted = {name: tuple(value.shape) for name, value in agent.encoder.state_dict().items()}
    if wanted != {name: tuple(value.shape) for name, value in weights.items()}:
        raise InputError(
            f"encoder_from: the encoder in {str(folder)!r} has other shapes than this task's; allowed: a run whose "
            "observations have the same channels and size"
        )
    agent.load_encoder(weights)
