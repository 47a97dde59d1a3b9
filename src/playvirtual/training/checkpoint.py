"""Checkpoints: folders that are complete or absent, read without ever running foreign code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from safetensors.torch import load_file, save_file
from torch import Tensor

from playvirtual.errors import InputError
from playvirtual.training.factory import ActionSpace


def save(
    run: Path,
    step: int,
    weights: Mapping[str, Tensor],
    observation_shape: tuple[int, ...],
    actions: ActionSpace,
) -> Path:
    """Writes checkpoints/step-…: beside its place first, checksummed, synced, then renamed."""
    final = run / "checkpoints" / f"step-{step:09d}"
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in weights.items()}
    save_file(tensors, partial / "weights.safetensors")
    record = {"step": step, "observation_shape": list(observation_shape), "actions": _describe(actions)}
    (partial / "agent.json").write_text(json.dumps(record, indent=2) + "\n")
    files = sorted(p for p in partial.iterdir())
    sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    (partial / "manifest.json").write_text(json.dumps(sums, indent=2) + "\n")
    for path in [*partial.iterdir(), partial]:
        _sync(path)
    partial.rename(final)
    _sync(final.parent)
    return final


def newest(run: Path) -> Path:
    """The run's newest complete checkpoint."""
    found = sorted(p for p in (run / "checkpoints").glob("step-*") if p.suffix != ".partial")
    if not found:
        raise InputError(f"run: {str(run)!r} has no checkpoint yet; allowed: a run that has reached its first one")
    return found[-1]


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], ActionSpace]:
    """(weights, agent.json, action space), after every file's checksum has been verified."""
    for name, expected in json.loads((path / "manifest.json").read_text()).items():
        if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
            raise InputError(f"checkpoint: {str(path / name)!r} is damaged (its checksum does not match)")
    record = json.loads((path / "agent.json").read_text())
    weights: dict[str, Tensor] = load_file(path / "weights.safetensors")
    return weights, record, _space(record["actions"])


def _describe(space: ActionSpace) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n)}
    return {"low": space.low.tolist(), "high": space.high.tolist()}


def _space(record: Mapping[str, Any]) -> ActionSpace:
    if "n" in record:
        return spaces.Discrete(int(record["n"]))
    low, high = (torch.tensor(record[key]).numpy() for key in ("low", "high"))
    return spaces.Box(low, high)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
