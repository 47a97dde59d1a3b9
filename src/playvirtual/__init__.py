"""Data-efficient reinforcement learning from pixels with cycle-consistent virtual trajectories (PlayVirtual).

>>> import playvirtual as pv
>>> run = pv.train("toy/catch", steps=2000)          # doctest: +SKIP
>>> agent = pv.load(run.path)                        # doctest: +SKIP
>>> aux = pv.VirtualTrajectories(forward=h, backward=b, projector=g, predictor=q,
...                              actions=space, horizon=9, copies=12)   # doctest: +SKIP
"""

from playvirtual.api import bench, evaluate, export, load, resume, train
from playvirtual.errors import InputError, Interrupted, RunError
from playvirtual.method import VirtualTrajectories
from playvirtual.presets import build
from playvirtual.training.bench import Measurement
from playvirtual.training.session import Run

__version__ = "0.1.0"
__all__ = [
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
