"""Nested state (dicts, lists, numbers, tensors) as JSON and safetensors, and back; nothing is ever unpickled."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from playvirtual import files
from playvirtual.errors import shown

# JSON data: a tensor is {"tensor": [its name, its strides]}, dicts keep order and integer keys.
Tree = Any

MOST_GAPS = 64  # times the memory that a tensor's numbers need


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
    """The inverse of `flatten_state`; raises a ValueError, LookupError or TypeError for what it never wrote."""
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


def check_like(state: Any, template: Any, name: str = "state") -> None:
    """Raises a ValueError unless `state` is built like `template`, the state of an agent or trainer that is new.

    Entries of records, types, and the types and dimensions of tensors must agree; lengths and what grows in empty
    records, such as an optimizer's, may differ. What is None when it is new may be a number or a tensor later.
    """
    if isinstance(template, dict):
        for key, expected in files.as_record(template).items():
            if not isinstance(state, dict) or key not in state:
                raise ValueError(f"{name} has no entry {key!r}")
            check_like(state[key], expected, f"{name}.{key}")
    elif isinstance(template, Tensor):
        if not isinstance(state, Tensor) or (state.dtype, state.ndim) != (template.dtype, template.ndim):
            raise ValueError(f"{name} is not a {template.ndim}-d tensor of {template.dtype}")
    elif isinstance(template, bool | str | list | tuple):
        if not isinstance(state, type(template)):
            raise ValueError(f"{name}: {shown(state)} is no {type(template).__name__}")
    elif isinstance(template, int):
        files.as_whole(state, name, high=2**128)  # the state of a generator has numbers of 128 bits
    elif isinstance(template, float) or (not isinstance(state, Tensor) and state is not None):
        files.as_number(state, name)


def _with_strides(value: Tensor, strides: list[int]) -> Tensor:
    # A part of a larger tensor has gaps; other strides than such could ask for any amount of memory.
    span = 1 + sum((size - 1) * step for size, step in zip(value.shape, strides, strict=True))
    if span > MOST_GAPS * value.numel() or any(step < 0 for step in strides):
        raise ValueError(f"the strides {strides} do not fit the shape {tuple(value.shape)}")
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
