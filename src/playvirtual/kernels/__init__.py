"""Whether fused GPU kernels are there and wanted; everything they do exists in plain PyTorch as well."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

AVAILABLE = torch.cuda.is_available() and find_spec("triton") is not None
_wanted = True
_persistent = os.environ.get("PLAYVIRTUAL_PERSISTENT_ROLLOUTS", "1") != "0"


def use_fused(wanted: bool) -> None:
    """Chooses between fused kernels and plain PyTorch on GPUs; before anything is compiled or captured."""
    global _wanted
    _wanted = wanted


def in_use() -> bool:
    """Whether tensors on a GPU go through the fused kernels."""
    return AVAILABLE and _wanted


def use_persistent(wanted: bool) -> None:
    """Chooses whether rollouts are one launch each way where that can be, the default, or always one launch per step.

    The environment variable PLAYVIRTUAL_PERSISTENT_ROLLOUTS=0 chooses the latter for a whole process.
    """
    global _persistent
    _persistent = wanted


def persistent_wanted() -> bool:
    """Whether rollouts may be one launch each way."""
    return _persistent


def under_mps() -> bool:
    """Whether kernels of other processes run on the GPU at the same time, by NVIDIA's Multi-Process Service."""
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ


def saves_launches(x: torch.Tensor) -> bool:
    """Whether x is where fewer and larger kernels are worth some more arithmetic: on a GPU, not on a CPU."""
    return x.is_cuda


def tensor_core_precision(dtype: torch.dtype) -> str:
    """How Triton is to multiply: exactly, or with tensor cores' short mantissa where PyTorch may do so too."""
    exact = dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return "ieee" if exact else "tf32"


def low_precision(x: torch.Tensor) -> torch.Tensor:
    """What autocast would make of x at the entrance of a matrix product."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
