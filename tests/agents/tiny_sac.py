"""A continuous agent so small that a plain reading can follow it, in double precision, with weights of no pattern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from playvirtual.agents.sac import Sac
from playvirtual.config.build import build
from playvirtual.config.schema import SacConfig
from playvirtual.method import BoxActions
from playvirtual.replay.batches import SacBatch, SequenceBatch, TransitionBatch

A, B, S = 2, 6, 3  # dimensions of the actions, transitions and sequences of a batch
CHANNELS, IMAGE, CROP = 3, 10, 8
K, M = 3, 2

# No two of one kind are equal, so that one in another's place is seen; ε is large, so that Adam sees the size of
# gradients and not their signs alone.
NUMBERS: dict[str, Any] = {
    "image_size": IMAGE,
    "crop_size": CROP,
    "channels": (4, 3),
    "kernel_sizes": (3, 2),
    "strides": (2, 1),
    "latent": 5,
    "hidden": 7,
    "dynamics_hidden": 6,
    "projection_hidden": 8,
    "log_std_min": -3.0,
    "log_std_max": 1.0,
    "intensity_scale": 0.3,
    "learning_rate": 0.03,
    "auxiliary_learning_rate": 0.02,
    "temperature_learning_rate": 0.05,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_eps": 0.01,
    "temperature_beta1": 0.4,
    "initial_temperature": 0.2,
    "max_grad_norm": 0.5,
    "actor_period": 2,
    "critic_target_period": 3,
    "q_tau": 0.3,
    "encoder_tau": 0.2,
    "momentum_tau": 0.15,
    "lambda_pred": 0.7,
    "lambda_cyc_max": 1.3,
    "i_end": 10,
    "K": K,
    "M": M,
}
PARTS = ("actor", "critic", "target_critic", "temperature", "auxiliary", "momentum")


@contextmanager
def float64() -> Iterator[None]:
    """Double precision for everything that is made inside."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def tiny_sac(method: str = "playvirtual", *, preset: str = "paper", **options: Any) -> Sac:
    """The agent with every weight drawn anew, so that no target network equals the online one."""
    given = {name: value for name, value in NUMBERS.items() if not (method == "rl" and name in ("K", "M"))}
    given = {name: value for name, value in given.items() if not (method.startswith("spr") and name == "M")}
    given = {name: value for name, value in given.items() if not (method.endswith("warmup") and name == "i_end")}
    config = build("dmc/walker-walk", method=method, preset=preset, **{**given, **options})
    assert isinstance(config.agent, SacConfig)
    torch.manual_seed(0)
    box = BoxActions((-1.0,) * A, (1.0,) * A)
    agent = Sac(config, (CHANNELS, IMAGE, IMAGE), box, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for part in PARTS:
            for name, p in getattr(agent, part).named_parameters():
                p.normal_(0.0, 0.3 if p.dim() < 2 else 1.3 / p[0].numel() ** 0.5)
                if name.endswith("ln.weight"):
                    p.add_(1.0)
    return agent


def weights_of(agent: Sac) -> dict[str, Tensor]:
    """Every weight as part.name."""
    return {
        f"{part}.{name}": value.detach().clone()
        for part in PARTS
        for name, value in getattr(agent, part).state_dict().items()
    }


def batch(seed: int = 0, *, K: int = K) -> SacBatch:
    """Pixels and actions of no pattern, a terminated transition, sequences that count in part or not at all."""
    generator = torch.Generator().manual_seed(seed)

    def pixels(*shape: int) -> Tensor:
        return torch.randint(256, (*shape, CHANNELS, IMAGE, IMAGE), generator=generator).to(torch.uint8)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator) - 1

    discounts = torch.full((B,), 0.9)
    discounts[seed % B] = 0.0
    transitions = TransitionBatch(torch.arange(B), pixels(B), uniform(B, A), uniform(B), discounts, pixels(B))
    if not K:
        return SacBatch(transitions, None)
    mask = torch.ones(S, K + 1)
    mask[1] = 0
    mask[2, 2:] = 0
    return SacBatch(transitions, SequenceBatch(torch.arange(S), pixels(S, K + 1), uniform(S, K, A), mask))
