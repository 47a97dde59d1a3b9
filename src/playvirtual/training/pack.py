"""Nested state (dicts, lists, numbers, tensors) as JSON beside safetensors, and back; nothing is ever unpickled."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

# What `json` writes: a tensor is {"tensor": [its name, its strides]}, dicts keep order and integer keys.
Tree = Any


def pack(value: Any) -> tuple[Tree, dict[str, Tensor]]:
    """(tree, tensors on the CPU): everything in `value`, which `unpack` puts together again."""
    tensors: dict[str, Tensor] = {}
    return _pack(value, "state", tensors), tensors


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(value, Tensor):
        if name in tensors:  # {"a.b": …} beside {"a": {"b": …}}
            raise ValueError(f"{name}: two tensors have this name")
        tensors[name] = value.detach().to("cpu").contiguous()
        # A fused optimiser walks weights and moments side by side in memory: their layout is part of the state.
        return {"tensor": [name, None if value.is_contiguous() else list(value.stride())]}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a {type(value).__name__} has no place in a checkpoint")


def unpack(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "tensor":
            name, strides = content
            return tensors[name] if strides is None else _laid_out(tensors[name], strides)
        case "dict":
            return {key: unpack(item, tensors) for key, item in content}
        case "list":
            return [unpack(item, tensors) for item in content]
        case "tuple":
            return tuple(unpack(item, tensors) for item in content)
    raise ValueError(f"a checkpoint knows no {kind!r}")


def _laid_out(value: Tensor, strides: list[int]) -> Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file."""
    return save({name: value.detach().to("cpu").contiguous() for name, value in tensors.items()})


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """What `to_bytes` wrote; raises SafetensorError for anything else, a pickle included."""
    return load(data)


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether no number among them is infinite or none at all."""
    return all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())
