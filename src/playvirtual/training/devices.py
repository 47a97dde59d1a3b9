"""Which device a run computes on."""

from __future__ import annotations

import torch

from playvirtual.config import check_device
from playvirtual.errors import InputError


def resolve(device: str | torch.device) -> torch.device:
    """`auto` is the GPU where there is one; asking for a GPU that is not there is an error."""
    name = str(device)
    check_device(name)
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
