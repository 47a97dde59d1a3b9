"""Values that the authors' released code computed; README.md says for which weights and inputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent


def u(count: int, offset: float) -> np.ndarray:
    """Deterministic numbers in [0, 1)."""
    x = np.sin((np.arange(count, dtype=np.float64) + 1) * 12.9898 + offset * 78.233) * 43758.5453
    return x - np.floor(x)


def w(shape: tuple[int, ...], offset: float, scale: float) -> Tensor:
    """Deterministic numbers in [−scale, scale)."""
    return torch.from_numpy((scale * (2 * u(int(np.prod(shape)), offset) - 1)).reshape(shape))


def load(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(parameters by the released code's plain names, the case with its expected values)."""
    data = json.loads((HERE / f"{name}.json").read_text())
    parameters = {}
    for p in data["parameters"]:
        shape, offset = tuple(p["shape"]), p["offset"]
        match p["kind"]:
            case "w":
                value = w(shape, offset, float(np.sqrt(3 / np.prod(shape[1:]))))
            case "b":
                value = w(shape, offset, 0.1)
            case "g":
                value = 1 + w(shape, offset, 0.1)
        parameters[p["name"]] = value
    return parameters, data["case"]
