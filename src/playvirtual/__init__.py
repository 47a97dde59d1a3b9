"""Data-efficient reinforcement learning from pixels with cycle-consistent virtual trajectories (PlayVirtual).

>>> import playvirtual as pv
>>> run = pv.train("toy/catch", steps=2000)          # doctest: +SKIP
>>> agent = pv.load(run.path)                        # doctest: +SKIP
>>> aux = pv.VirtualTrajectories(forward=h, backward=b, projector=g, predictor=q,
...                              actions=space, horizon=9, copies=12)   # doctest: +SKIP
"""

from playvirtual.api import evaluate, load, train
from playvirtual.errors import InputError
from playvirtual.method import VirtualTrajectories
from playvirtual.presets import build
from playvirtual.training.loop import Run

__version__ = "0.1.0"
__all__ = ["InputError", "Run", "VirtualTrajectories", "build", "evaluate", "load", "train"]
