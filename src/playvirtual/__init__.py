"""Data-efficient reinforcement learning from pixels with cycle-consistent virtual trajectories (PlayVirtual).

>>> import playvirtual as pv
>>> run = pv.train("toy/catch", steps=2000)          # doctest: +SKIP
>>> agent = pv.load(run.path)                        # doctest: +SKIP
>>> aux = pv.PlayVirtualLoss(encoder, actions=space, latent=128, K=5, M=6)   # doctest: +SKIP
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from playvirtual.errors import closest

if TYPE_CHECKING:
    from playvirtual.agents.agent import Agent, Schedule, Update, UpdatePattern
    from playvirtual.api import benchmark, configure, evaluate, export, load, resume, train, video
    from playvirtual.bench.measure import Measurement
    from playvirtual.config.build import build
    from playvirtual.config.registry import hyperparameters_of, register_agent, register_method, register_sampler
    from playvirtual.config.schema import AgentConfig, Config
    from playvirtual.envs.registry import register_env
    from playvirtual.errors import InputError, Interrupted, RunError, StopTraining
    from playvirtual.method import PlayVirtualLoss, SelfPrediction, VirtualTrajectories, sample_sequences
    from playvirtual.options import option
    from playvirtual.runs.trained_agent import GymPolicy, TrainedAgent
    from playvirtual.share.card import export_with_card
    from playvirtual.share.hub import pull, push
    from playvirtual.training.callbacks import Callback, CheckpointEvent, EvaluationEvent, StepEvent
    from playvirtual.training.runner import Run

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "AgentConfig",
    "Callback",
    "CheckpointEvent",
    "Config",
    "EvaluationEvent",
    "GymPolicy",
    "InputError",
    "Interrupted",
    "Measurement",
    "PlayVirtualLoss",
    "Run",
    "RunError",
    "Schedule",
    "SelfPrediction",
    "StepEvent",
    "StopTraining",
    "TrainedAgent",
    "Update",
    "UpdatePattern",
    "VirtualTrajectories",
    "benchmark",
    "build",
    "configure",
    "evaluate",
    "export",
    "export_with_card",
    "hyperparameters_of",
    "load",
    "option",
    "pull",
    "push",
    "register_agent",
    "register_env",
    "register_method",
    "register_sampler",
    "resume",
    "sample_sequences",
    "train",
    "video",
]

_MODULES = {
    **dict.fromkeys(("Agent", "Schedule", "Update", "UpdatePattern"), "playvirtual.agents.agent"),
    **dict.fromkeys(
        ("benchmark", "configure", "evaluate", "export", "load", "resume", "train", "video"), "playvirtual.api"
    ),
    **dict.fromkeys(("InputError", "Interrupted", "RunError", "StopTraining"), "playvirtual.errors"),
    **dict.fromkeys(("Callback", "CheckpointEvent", "EvaluationEvent", "StepEvent"), "playvirtual.training.callbacks"),
    **dict.fromkeys(("AgentConfig", "Config"), "playvirtual.config.schema"),
    **dict.fromkeys(
        ("PlayVirtualLoss", "SelfPrediction", "VirtualTrajectories", "sample_sequences"), "playvirtual.method"
    ),
    **dict.fromkeys(
        ("hyperparameters_of", "register_agent", "register_method", "register_sampler"), "playvirtual.config.registry"
    ),
    **dict.fromkeys(("GymPolicy", "TrainedAgent"), "playvirtual.runs.trained_agent"),
    **dict.fromkeys(("pull", "push"), "playvirtual.share.hub"),
    "Measurement": "playvirtual.bench.measure",
    "Run": "playvirtual.training.runner",
    "build": "playvirtual.config.build",
    "export_with_card": "playvirtual.share.card",
    "option": "playvirtual.options",
    "register_env": "playvirtual.envs.registry",
}
_COMMANDS = ("sweep", "report", "probe", "list")  # what the command line has and Python has not


def __getattr__(name: str) -> Any:
    """Imports a name when it is first asked for: a process that only steps environments needs no PyTorch."""
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    meant = closest(name, __all__)
    hint = f"; did you mean {meant!r}?" if meant else ""
    if name in _COMMANDS:
        hint = f"; it is a command: `playvirtual {name} --help`"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
