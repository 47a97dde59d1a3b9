"""Three updates of Rainbow in float64 beside a plain reading of the paper, in everything that an update changes.

The target networks differ from the online ones, importance weights from 1 and each other, sequences end early, images
are augmented, the head is noisy, gradients are clipped, and the target network is updated in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from playvirtual import kernels
from playvirtual.config.hyperparameters import METHODS
from playvirtual.method import RandomInputs
from playvirtual.replay.batches import RainbowBatch
from tests.agents.plain_rainbow import Draws, ramp_up
from tests.agents.small_rainbow import (
    plain_draws,
    plain_twin,
    schedule_at,
    small_agent,
    small_batch,
    small_config,
    target_state,
)

TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}
STEPS = (0, 60, 140)  # before, within and after the warm-up of λ_cyc


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


CASES: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS},
    "cycles-and-backward-prediction": {"method": "playvirtual", "backward_prediction": True},
    "latent-backward-prediction": {"method": "playvirtual-latent", "backward_prediction": True},
    "latent-mse": {"method": "playvirtual-latent", "latent_distance": "mse"},
    "latent-normalised-mse": {"method": "playvirtual-latent", "latent_distance": "normalised-mse"},
    "latent-every-step": {"method": "playvirtual-latent", "constraint": "every"},
    "nd-every-step": {"method": "playvirtual-nd", "constraint": "every"},
    "nd-real-cycle": {"method": "playvirtual-nd", "real_cycle": True},
    "every-step-real-cycle": {"method": "playvirtual-every-step", "real_cycle": True},
    "spr-bdm-latent-one-step": {"method": "spr-bdm", "metric": "latent", "K": 1},
    "target-before-step": {"target_moment": "before-step"},
    "target-tau": {"target_tau": 0.3},
    "target-tau-before-step": {"method": "spr", "target_tau": 0.3, "target_moment": "before-step"},
    "large-batch": {"B": 9},
    "vectors": {"latent": 6, "real_cycle": True},
    "vectors-nd": {"latent": 6, "method": "playvirtual-nd"},
    "some-groups-clipped": {"max_grad_norm": 0.6},
    "fixed-encoder": {"method": "rl", "encoder_from": "elsewhere"},
}


@pytest.mark.parametrize("case", ["playvirtual", "spr", "latent-mse", "target-tau", "vectors"])
def test_three_updates_with_the_larger_products_of_a_gpu_are_too(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "saves_launches", lambda x: True)
    compare_three_updates({"B": 9, **CASES[case]})


@pytest.mark.parametrize("case", CASES)
def test_three_updates_are_those_of_the_plain_reading(case: str) -> None:
    compare_three_updates(CASES[case])


def compare_three_updates(case: Mapping[str, Any]) -> None:
    """Compares three updates of the agent with those of its plain twin: metrics, priorities, all that they change."""
    options = dict(case)
    B = options.pop("B", 5)
    config = small_config(**options)
    agent = small_agent(config, seed=1)
    twin = plain_twin(agent, config)
    draws: list[Draws] = []
    draw = agent.draw

    def recorded(batch: RainbowBatch) -> RandomInputs:
        inputs = draw(batch)
        draws.append(plain_draws(agent, inputs))
        return inputs

    agent.draw = recorded  # type: ignore[method-assign]
    for number, step in enumerate(STEPS):
        batch = small_batch(agent, seed=number, B=B)
        metrics, priorities = agent.update(batch, schedule_at(agent, step, number))
        lambda_cyc = ramp_up(step, config.objective.i_end, 0.7)
        expected, expected_priorities = twin.update(batch, draws[-1], lambda_cyc, target_due=number == 1)
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected, rel=1e-9, abs=1e-11)
        assert priorities is not None
        assert priorities.tolist() == pytest.approx(expected_priorities, rel=1e-9)
    assert len(draws) == len(STEPS)
    for name, p in agent.online.named_parameters():
        torch.testing.assert_close(p.detach(), twin.w[name].detach(), **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    for name, value in target_state(agent).items():
        torch.testing.assert_close(value, twin.target[name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    if not config.objective.real_cycle:  # whose forward pass the agent need not make twice
        for name, value in twin.statistics.items():
            torch.testing.assert_close(agent.online.state_dict()[name], value, **TOLERANCE)
