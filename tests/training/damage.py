"""Checkpoints with another content that are, to all appearance, undamaged."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from playvirtual.runs.state import from_bytes, to_bytes


def replace(file: Path, data: bytes) -> None:
    """Gives a checkpoint's file another content, and the manifest its checksum."""
    file.write_bytes(data)
    sums = json.loads((file.parent / "manifest.json").read_text())
    sums[file.name] = hashlib.sha256(data).hexdigest()
    (file.parent / "manifest.json").write_text(json.dumps(sums))


def edit(path: Path, change: Callable[[list[list[Any]], dict[str, Tensor]], object]) -> None:
    """Changes the state in a checkpoint: its entries, as [name, tree] each, and its tensors by name."""
    record, tensors = (
        json.loads((path / "state.json").read_bytes()),
        from_bytes((path / "state.safetensors").read_bytes()),
    )
    change(record["tree"]["dict"], tensors)
    replace(path / "state.json", json.dumps(record).encode())
    replace(path / "state.safetensors", to_bytes(tensors))


def without(entries: list[list[Any]], *names: str) -> None:
    entries[:] = [entry for entry in entries if entry[0] not in names]
