"""What agents look at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.errors import InputError


def as_images(observation: Tensor | npt.NDArray[np.uint8], shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """(…, C, H, W) uint8 observations of the shape that an agent was made for, on its device."""
    allowed = f"allowed: uint8 of shape {shape}, or many of them"
    try:
        images = torch.as_tensor(observation)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"observation: {type(observation).__name__} is not allowed; {allowed}") from None
    if images.dtype != torch.uint8 or tuple(images.shape[-3:]) != shape:
        found = f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
        raise InputError(f"observation: {found} is not allowed; {allowed}")
    return images.to(device)
