"""Three updates of the continuous agent beside a plain reading of the method: every weight and every metric.

Target networks are far from the online ones, a transition is terminated, a sequence counts in part and another not at
all, every view has a crop and an intensity of its own, gradients are clipped, and no two rates are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from playvirtual.agents.agent import Schedule
from playvirtual.agents.sac import SacRandoms
from playvirtual.method import RandomInputs
from playvirtual.replay import ImageRandoms
from tests.agents.plain_sac import PlainSac, Randoms, Settings, Views, center, encode
from tests.agents.tiny_sac import CROP, IMAGE, NUMBERS, A, B, K, M, S, batch, float64, tiny_sac, weights_of

STEPS = (4, 8, 12)  # of the three updates; the warm-up of the cycle loss' weight ends at 10
PAPER = Settings(
    strides=(2, 1),
    crop_size=8,
    log_std=(-3.0, 1.0),
    encoder_tanh=True,
    intensity_scale=0.3,
    K=3,
    M=2,
    lambda_pred=0.7,
    lambda_cyc_max=1.3,
    i_end=10,
    learning_rate=0.03,
    auxiliary_learning_rate=0.02,
    temperature_learning_rate=0.05,
    beta1=0.8,
    beta2=0.95,
    temperature_beta1=0.4,
    adam_eps=0.01,
    max_grad_norm=0.5,
    actor_period=2,
    critic_target_period=3,
    momentum_period=1,
    q_tau=0.3,
    encoder_tau=0.2,
    momentum_tau=0.15,
)
REFERENCE = {"encoder_tanh": False, "encoder_steps_twice": True, "momentum_period": 2}  # what the released code changes
LATENT = {"latent_metric": True}
# method, preset and options -> what they mean
CASES: dict[str, tuple[tuple[str, str, dict[str, Any]], dict[str, Any]]] = {
    "rl": (("rl", "paper", {}), {"K": 0, "M": 0}),
    "rl, reference": (("rl", "reference", {}), {"K": 0, "M": 0, **REFERENCE}),
    "spr": (("spr", "paper", {}), {"M": 0}),
    "spr, reference, not clipped": (
        ("spr", "reference", {"max_grad_norm": 1e3}),
        {"M": 0, **REFERENCE, "max_grad_norm": 1e3},
    ),
    "a backward model on recorded actions": (("spr-bdm", "paper", {}), {"M": 0, "real_cycle": True}),
    "a backward model that predicts the recorded past": (
        ("spr-bdm-prediction", "paper", {}),
        {"M": 0, "backward_prediction": True},
    ),
    "cycles and backward prediction, latent metric": (
        ("playvirtual-latent", "paper", {"backward_prediction": True}),
        {"backward_prediction": True, **LATENT},
    ),
    "playvirtual": (("playvirtual", "paper", {}), {}),
    "playvirtual, reference": (("playvirtual", "reference", {}), REFERENCE),
    "not clipped": (("playvirtual", "paper", {"max_grad_norm": 1e3}), {"max_grad_norm": 1e3}),
    "forward model not trained by cycles": (("playvirtual-nd", "paper", {}), {"cycle_trains_forward": False}),
    "latent metric": (("playvirtual-latent", "paper", {}), LATENT),
    "latent metric, reference": (
        ("playvirtual-latent", "reference", {}),
        {**LATENT, **REFERENCE, "mean_of_squares": True},
    ),
    "every step": (("playvirtual-every-step", "paper", {}), {"every_step": True}),
    "every step, latent metric": (
        ("playvirtual-every-step", "paper", {"metric": "latent"}),
        {"every_step": True, **LATENT},
    ),
    "no warm-up": (("playvirtual-no-warmup", "paper", {}), {"i_end": 0}),
    "real cycle": (("playvirtual-real-cycle", "paper", {}), {"real_cycle": True}),
    "real cycle, every step": (
        ("playvirtual-real-cycle", "paper", {"constraint": "every"}),
        {"real_cycle": True, "every_step": True},
    ),
    "real cycle, forward model not trained": (
        ("playvirtual-real-cycle", "paper", {"cycle_trains_forward": False}),
        {"real_cycle": True, "cycle_trains_forward": False},
    ),
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with float64():
        yield


def randoms_of(seed: int, views: int) -> Randoms:
    """One draw of everything, each role with numbers of its own; some intensities lie beyond two deviations."""
    generator = torch.Generator().manual_seed(seed)

    def offsets(*shape: int) -> Tensor:
        return torch.randint(IMAGE - CROP + 1, (*shape, 2), generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def some(*shape: int) -> Views:
        return Views(offsets(*shape), 2 * normal(*shape))

    virtual = 2 * torch.rand((S, M, K, A), generator=generator) - 1
    recorded, last, cycle = some(S, K + 1), some(S), some(S, views)
    return Randoms(offsets(B), offsets(B), normal(B, A), normal(B, A), some(S), recorded, last, cycle, virtual)


def as_agent_has_them(randoms: Randoms, *, K: int, M: int, backward: bool) -> SacRandoms:
    """The same numbers in the agent's order: of the target's views first all recorded states, then all views of s_t."""
    none = ImageRandoms(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0))
    offsets, noise = (
        torch.cat([(r if backward else r[:, 1:]).flatten(0, 1), c.flatten(0, 1)])
        for r, c in zip(randoms.recorded, randoms.cycle, strict=True)
    )
    now, last = ImageRandoms(*randoms.now), ImageRandoms(*randoms.last) if backward else none
    inputs = RandomInputs(now, none, ImageRandoms(offsets, noise), randoms.virtual[:, :M], last=last)
    return SacRandoms(randoms.crops, randoms.next_crops, randoms.noise, randoms.next_noise, inputs if K else None)


@pytest.mark.parametrize("case", CASES)
def test_three_updates(case: str) -> None:
    (method, preset, options), meaning = CASES[case]
    settings = Settings(**{**vars(PAPER), **meaning})
    agent = tiny_sac(method, preset=preset, **options)
    plain = PlainSac(weights_of(agent), settings)
    schedule = Schedule(agent.schedules)
    given = [randoms_of(seed, settings.M + settings.real_cycle) for seed in range(3)]
    drawn = iter(
        [as_agent_has_them(one, K=settings.K, M=settings.M, backward=settings.backward_prediction) for one in given]
    )
    agent.draw = lambda batch: next(drawn)  # type: ignore[method-assign]
    largest = 0.0
    for number, step in enumerate(STEPS):
        learned = batch(number, K=settings.K)
        schedule.set(step)
        schedule.due = agent.update_pattern.due(number)
        found = agent.update(learned, schedule)
        expected = plain.update(number, step, *learned, given[number])
        assert found.priorities is None
        assert found.metrics.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found.metrics[name], value.detach(), rtol=1e-9, atol=1e-11, msg=name)
            assert not found.metrics[name].requires_grad
        largest = max(largest, float(expected.get("grad_norm_auxiliary", 0.0)))
        for name, value in weights_of(agent).items():
            torch.testing.assert_close(value, plain.w[name], rtol=1e-9, atol=1e-11, msg=f"{name} after {number}")
    if settings.K:
        assert (largest > settings.max_grad_norm) == ("not clipped" not in case)


def test_the_numbers_are_those_of_the_agent() -> None:
    assert {name: value for name, value in vars(PAPER).items() if name in NUMBERS} == {
        name: NUMBERS[name] for name in vars(PAPER) if name in NUMBERS
    }


def test_acting_sees_the_center_and_takes_the_mean() -> None:
    agent = tiny_sac()
    plain = PlainSac(weights_of(agent), PAPER)
    images = batch().transitions.observations
    torch.testing.assert_close(agent.act(images), plain.mean_action(images), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(agent.act(images[2].numpy()), plain.mean_action(images[2:3])[0], rtol=1e-9, atol=1e-11)


def test_probes_see_the_state_of_the_center() -> None:
    agent = tiny_sac()
    images = batch().transitions.observations
    expected = encode(weights_of(agent), "critic.encoder", center(images, CROP), PAPER)
    torch.testing.assert_close(agent.encode(images), expected, rtol=1e-9, atol=1e-11)


def test_exploring_draws_from_the_policy() -> None:
    agent = tiny_sac()
    plain = PlainSac(weights_of(agent), PAPER)
    images = batch().transitions.observations
    law = plain.center_policy(images)
    draws = agent.act(images.repeat(500, 1, 1, 1), explore=True).unflatten(0, (500, B))  # (500, B, A)
    u = torch.atanh(draws.clamp(-1 + 1e-12, 1 - 1e-12))
    deviation = (u - law.mean) / law.stddev
    assert float(deviation.mean(0).abs().max()) < 5 / 500**0.5
    torch.testing.assert_close(deviation.std(0), torch.ones(B, A), rtol=0, atol=0.2)
    correlation = torch.corrcoef(deviation.flatten(1).T) - torch.eye(B * A)
    assert float(correlation.abs().max()) < 0.25  # every sample and dimension has noise of its own
