"""Data-efficient reinforcement learning from pixels with cycle-consistent virtual trajectories (PlayVirtual).

>>> import playvirtual as pv
>>> run = pv.train("toy/catch", steps=2000)          # doctest: +SKIP
>>> agent = pv.load(run.path)                        # doctest: +SKIP
>>> aux = pv.VirtualTrajectories(forward=h, backward=b, projector=g, predictor=q,
...                              actions=space, horizon=9, copies=12)   # doctest: +SKIP
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playvirtual.api import bench, evaluate, export, load, resume, train
    from playvirtual.config import Config
    from playvirtual.errors import InputError, Interrupted, RunError
    from playvirtual.method import VirtualTrajectories
    from playvirtual.presets import build
    from playvirtual.training.bench import Measurement
    from playvirtual.training.factory import Agent
    from playvirtual.training.session import Run

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Config",
    "InputError",
    "Interrupted",
    "Measurement",
    "Run",
    "RunError",
    "VirtualTrajectories",
    "bench",
    "build",
    "evaluate",
    "export",
    "load",
    "resume",
    "train",
]

_HOMES = {
    "Agent": "playvirtual.training.factory",
    **dict.fromkeys(("bench", "evaluate", "export", "load", "resume", "train"), "playvirtual.api"),
    **dict.fromkeys(("InputError", "Interrupted", "RunError"), "playvirtual.errors"),
    "Config": "playvirtual.config",
    "VirtualTrajectories": "playvirtual.method",
    "build": "playvirtual.presets",
    "Measurement": "playvirtual.training.bench",
    "Run": "playvirtual.training.session",
}


def __getattr__(name: str) -> Any:
    """Brings a name when it is first asked for: a process that only plays an environment needs no PyTorch."""
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
