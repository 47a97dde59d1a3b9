"""What a checkpoint holds of a trainer, and how a trainer is restored from it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from playvirtual.agents.agent import policy_state_dict
from playvirtual.config.record import differences, from_dict, to_dict
from playvirtual.config.schema import Config
from playvirtual.device import num_threads
from playvirtual.errors import InputError
from playvirtual.messages import logger
from playvirtual.replay.snapshot import restore_snapshot, snapshot_files
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import MISFITS, STATE, STATE_TREE, policy_files, read_state, unusable
from playvirtual.runs.checkpoint import Content
from playvirtual.runs.state import all_finite, check_like, flatten_state, to_bytes
from playvirtual.training.trainer import Trainer


class RunPosition(NamedTuple):
    """Where the run folder was when a checkpoint was written."""

    log_sizes: Mapping[str, int]  # bytes of each JSONL log
    clock: Mapping[str, float]  # seconds by part


# Options that may differ when a run resumes; the task, because its environment may have moved to another module.
MAY_CHANGE = ("task", "steps", "stop_at_score", "device")


class NonFiniteWeights(ValueError):
    """The agent has weights, or optimizer state, that are infinite or NaN."""


def checkpoint_files(trainer: Trainer, position: RunPosition) -> list[tuple[str, Content]]:
    """The files of a checkpoint: policy weights, the state of training, the replay's frames.

    Raises NonFiniteWeights rather than let a checkpoint have them.
    """
    tree, tensors = flatten_state(trainer.state_dict())
    if not all_finite({name: value for name, value in tensors.items() if name.startswith("state.agent")}):
        raise NonFiniteWeights
    config = {name: value for name, value in to_dict(trainer.config).items() if name not in MAY_CHANGE}
    record = {"tree": tree, "positions": position.log_sizes, "clock": position.clock, "config": config}
    weights, env = policy_state_dict(trainer.agent), trainer.env
    return [
        *policy_files(
            trainer.global_step,
            weights,
            env.observation_shape,
            env.action_space,
            env.native_action_space,
            env.observed_parts,
        ).items(),
        (STATE_TREE, json.dumps(record).encode()),
        (STATE, to_bytes(tensors)),
        *snapshot_files(trainer.replay),
    ]


def _check_same_config(own: Config, written: Mapping[str, Any], path: Path) -> None:
    """Raises an InputError if the checkpoint was written under other options: a flipped bit of config.json is one."""
    same = {name: value for name, value in to_dict(own).items() if name in MAY_CHANGE}
    try:
        changed = differences(from_dict({**written, **same}), own) if written else []
    except InputError:  # of another version, whose options had other names
        return
    if changed:
        raise InputError(
            f"checkpoint: {str(path)!r} was written under another configuration than config.json has now "
            f"({'; '.join(changed)})"
        )


def restore(trainer: Trainer, path: Path, *, same_config: bool = True) -> RunPosition:
    """Restores a new trainer to the state of the checkpoint, which must have been written under its configuration.

    Without `same_config` it need not have been, as where its state is looked at in another precision.
    An InputError says that the checkpoint cannot be used. A part of it may have been loaded by then: the trainer must
    not be used any more.
    """
    checkpoint.verify(path)
    threads_before = num_threads(trainer.device)
    state, log_sizes, clock, config = read_state(path)
    if same_config:
        _check_same_config(trainer.config, config, path)
    try:
        check_like(state, {**trainer.state_dict(), "env": {}})
        trainer.load_state_dict(state)
        env_state = trainer.env.checked_state(state["env"])
        restore_snapshot(trainer.replay, lambda name: checkpoint.read(path, name))
    except (InputError, torch.OutOfMemoryError):
        raise
    except (*MISFITS, zlib.error) as error:
        raise unusable(path, error) from None
    threads = num_threads(trainer.device)
    if threads != threads_before:
        logger.info(
            f"{path} was written with {threads} CPU threads, not {threads_before}, and resumes with {threads}: their "
            "number decides rounding"
        )
    if state["device"] != trainer.device.type:
        logger.warning(
            f"{path} was written on {state['device']} and resumes on {trainer.device.type}: its random draws differ "
            "from here on"
        )
    if not trainer.restore_env(env_state):
        logger.warning(
            f"{trainer.config.task} gave another observation when its episode was replayed: seed and actions do not "
            "decide it. The episode is truncated; this run differs from one that was not interrupted"
        )
    return RunPosition(log_sizes, clock)
