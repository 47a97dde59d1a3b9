"""Nested state (dicts, lists, numbers, tensors) as JSON and safetensors, and back; nothing is ever unpickled."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

# JSON data: a tensor is {"tensor": [its name, its strides]}, dicts keep order and integer keys.
Tree = Any


def flatten_state(value: Any) -> tuple[Tree, dict[str, Tensor]]:
    """(tree, tensors on the CPU): everything in `value`, from which `unflatten_state` builds it again."""
    tensors: dict[str, Tensor] = {}
    return _flatten(value, "state", tensors), tensors


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(value, Tensor):
        if name in tensors:  # {"a.b": …} beside {"a": {"b": …}}
            raise ValueError(f"{name}: two tensors have this name")
        tensors[name] = value.detach().to("cpu").contiguous()
        # A fused optimizer reads weights and moments in the order of memory: their layout is part of the state.
        return {"tensor": [name, None if value.is_contiguous() else list(value.stride())]}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_flatten(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a {type(value).__name__} has no place in a checkpoint")


def unflatten_state(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `flatten_state`."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "tensor":
            name, strides = content
            return tensors[name] if strides is None else _with_strides(tensors[name], strides)
        case "dict":
            return {key: unflatten_state(item, tensors) for key, item in content}
        case "list":
            return [unflatten_state(item, tensors) for item in content]
        case "tuple":
            return tuple(unflatten_state(item, tensors) for item in content)
    raise ValueError(f"{kind!r} is not a kind of value in a checkpoint")


def _with_strides(value: Tensor, strides: list[int]) -> Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The content of a safetensors file."""
    return save({name: value.detach().to("cpu").contiguous() for name, value in tensors.items()})


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors that `to_bytes` wrote; raises SafetensorError for anything else, a pickle included."""
    return load(data)


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether none of the numbers is infinite or NaN."""
    return all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())
