"""Giving a training back what a checkpoint holds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from playvirtual.errors import InputError
from playvirtual.training import checkpoint, frames
from playvirtual.training.arithmetic import threads_on
from playvirtual.training.loop import Training, device_of
from playvirtual.training.notice import say
from playvirtual.training.pack import unpack


class Around(NamedTuple):
    """What a checkpoint knows of the run around the training."""

    positions: Mapping[str, int]  # in the journals
    clock: Mapping[str, float]  # seconds by part


def load(training: Training, path: Path) -> Around:
    """Takes a new training to where the checkpoint was made.

    An InputError says that the checkpoint cannot be used; the training may have taken over a part of it by then, and
    is of no use any more.
    """
    checkpoint.verify(path)
    before = threads_on(training.device)
    tensors = checkpoint.read_tensors(path, "state.safetensors")
    try:
        record = json.loads(checkpoint.read(path, "state.json"))
        around = Around(dict(record["positions"]), dict(record["clock"]))
        state = unpack(record["tree"], tensors)
        training.load_state_dict(state)
        game = {name: state[name] for name in ("episode", "actions", "observation")}
        frames.restore(training.replay, lambda name: checkpoint.read(path, name))
    except (InputError, torch.OutOfMemoryError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, zlib.error) as error:
        # PyTorch's word on a state that does not fit has many lines.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"checkpoint: {str(path)!r} cannot be used ({reason})") from None
    threads = threads_on(training.device)
    if threads != before:
        say(f"{path} was made with {threads} of the CPU's threads, not {before}, and goes on so: they decide rounding")
    there, here = device_of(state), training.device.type
    if there != here:
        say(f"{path} was made on {there} and goes on on {here}: from here on its random draws are others")
    if not training.rejoin(game):
        say(
            f"{training.config.task} came to another picture when its episode was played again: its seed and "
            "actions do not decide it. The episode is closed; this run is not the one it would have been"
        )
    return around
