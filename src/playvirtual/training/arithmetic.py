"""How this process computes: in which precision, with how many threads."""

from __future__ import annotations

import torch

from playvirtual.config import Config


def set_arithmetic(config: Config, device: torch.device, threads: int = 0) -> None:
    """Makes this process compute as the configuration says; whoever lets a run's agent act or learn calls it first.

    Matrix products and convolutions may use TF32, or not; bf16 is the agent's own business. `threads` are taken where
    the configuration leaves their number open; 0 leaves it to PyTorch.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    _threads.use((config.threads or threads) if device.type == "cpu" else 0)


def threads_on(device: torch.device) -> int:
    """How many threads a run computes with there: on the CPU they decide the order of sums; 0 on a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else 0


def precision_on(device: torch.device, config: Config) -> str:
    """What the configuration's precision comes to: tensor cores take tf32 and bf16 since NVIDIA's Ampere."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return config.precision if able else "fp32"


class _Threads:
    """How many threads PyTorch's operators use: a run's number, or what they had before any run asked."""

    def __init__(self) -> None:
        self._asked = 0  # by the last run; 0: nothing that would have to be taken back
        self._before = 0

    def use(self, count: int) -> None:
        now = torch.get_num_threads()
        own = self._before if now == self._asked else now  # another number is a later choice of someone else
        self._asked, self._before = count, own
        if (wanted := count or own) != now:
            torch.set_num_threads(wanted)


_threads = _Threads()
