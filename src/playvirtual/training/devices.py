"""Which device a run computes on."""

from __future__ import annotations

import torch

from playvirtual.errors import InputError


def resolve(name: str) -> torch.device:
    """`auto` is the GPU where there is one; asking for a GPU that is not there is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        if torch.device(name).index is not None and (torch.device(name).index or 0) >= count > 0:
            raise InputError(
                f"device: {name!r} is not there; allowed: cpu, {', '.join(f'cuda:{i}' for i in range(count))}"
            )
        if count == 0:
            raise InputError(f"device: {name!r} is not there (PyTorch sees no GPU); allowed: auto, cpu")
    return torch.device(name)


def set_precision(name: str) -> None:
    """Lets matrix products and convolutions use TF32, or not; bf16 is the agent's own business."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "fp32"
