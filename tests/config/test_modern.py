"""The numbers of SPR with resets, SR-SPR and BBF as their released configurations have them."""

from __future__ import annotations

from typing import Any

import pytest

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.config.modern import METHODS
from playvirtual.config.record import from_dict, to_dict
from playvirtual.errors import InputError
from playvirtual.options import leaves

# google-research, bigger_better_faster/bbf/configs: SR_SPR.gin and what BBF.gin has as well.
COMMON: dict[str, Any] = {
    "learning_starts": 2_000,
    "epsilon_end": 0,
    "epsilon_decay_steps": 2_001,
    "eval_epsilon": 0.001,
    "noisy_sigma": 0,
    "atoms": 51,
    "v_max": 10,
    "batch_size": 32,
    "K": 5,
    "M": "0",
    "lambda_pred": 5 / 5,  # there the weight of a mean over 5 steps, here of their sum
    "learning_rate": 1e-4,
    "adam_eps": 1.5e-4,
    "target_tau": 0.005,
    "target_period": 1,
    "priority_exponent": 0.5,
    "priority_beta_start": 0.5,
    "priority_beta_end": 0.5,
    "new_priority": "largest",
    "shift_pad": 4,
    "intensity_scale": 0.05,
    "steps": 100_000,
    "eval_episodes": 100,
}
ATARI: dict[str, dict[str, Any]] = {
    "sr-spr": {
        **COMMON,
        "channels": (32, 64, 64),
        "kernel_sizes": (8, 4, 3),
        "strides": (4, 2, 1),
        "hidden": 512,
        "discount": 0.99,
        "n_step": 10,
        "updates_per_step": 256 / 32,
        "reset_every": 5_000 + 1,  # training_steps > next_reset, counted from 0
        "reset_keeps": 0.8,
    },
    "bbf": {
        **COMMON,
        "channels": (16 * 4, 32 * 4, 32 * 4),
        "residual_blocks": 2,
        "hidden": 2_048,
        "discount": 0.997,
        "initial_discount": 0.97,
        "n_step": 10,
        "final_n_step": 3,
        "anneal_updates": 10_000,
        "updates_per_step": 64 / 32,
        "weight_decay": 0.1,
        "reset_every": 20_000 + 1,
        "reset_keeps": 0.5,
    },
}
TASKS = ("atari/alien", "minatar/breakout", "toy/catch")


def values(task: str, method: str, **options: Any) -> dict[str, Any]:
    return {f.name: value for f, _, value in leaves(build(task, method=method, **options))}


@pytest.mark.parametrize("method", ATARI)
def test_atari(method: str) -> None:
    found = values("atari/alien", method)
    assert {name: found[name] for name in ATARI[method]} == ATARI[method]


@pytest.mark.parametrize(("with_resets", "without"), [("spr-resets", "spr"), ("playvirtual-resets", "playvirtual")])
@pytest.mark.parametrize("task", TASKS)
def test_resets_change_nothing_else(with_resets: str, without: str, task: str) -> None:
    """rl_with_resets, SPR_with_resets.gin: every 20,000 of 100,000 steps; other tasks have as many."""
    found, plain = values(task, with_resets), values(task, without)
    assert found.pop("reset_every") == {"atari/alien": 20_000, "minatar/breakout": 10_000, "toy/catch": 2_000}[task]
    assert {name for name in plain if plain[name] != found[name]} == {"method"}
    assert set(found) == set(plain)


@pytest.mark.parametrize(("method", "virtual"), [("sr-spr", "sr-spr-virtual"), ("bbf", "bbf-virtual")])
@pytest.mark.parametrize("task", TASKS)
def test_virtual_trajectories_on_top_change_their_number_alone(method: str, virtual: str, task: str) -> None:
    one, other = values(task, method), values(task, virtual)
    assert {name for name in one if one[name] != other[name]} == {"method", "M"}
    assert other["M"] == values(task, "playvirtual")["M"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_configuration_survives_json(method: str, task: str) -> None:
    config = build(task, method=method)
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("method", METHODS)
def test_continuous_actions_are_refused(method: str) -> None:
    with pytest.raises(InputError, match=f"method: '{method}' is not for 'toy/reach' with continuous actions; allowed"):
        build("toy/reach", method=method)


def test_an_environment_of_ones_own_is_reset_in_proportion_to_its_steps() -> None:
    """A fifth of its 10,000 steps, and annealing a tenth of those of Atari; three stages for larger images, one for
    smaller ones."""
    fitted = {"fitted_to": "64x64x3 images, 4 actions, 10000 steps", "size": "small", "steps": 10_000}
    found = pv.config.build.base("env/module:Name", "bbf", "bbf", fitted).agent  # as a recorded run is read
    assert (found.reset_every, found.anneal_updates, found.epsilon_decay_steps) == (2_000, 1_000, 200)
    assert (found.channels, found.kernel_sizes, found.strides) == ((16, 32, 32), (3, 3, 3), (2, 2, 2))
    tiny = pv.config.build.base(
        "env/module:Name", "bbf", "bbf", {**fitted, "fitted_to": "9x9x3 images, 4 actions, 10000 steps"}
    )
    assert (tiny.agent.channels, tiny.agent.strides) == ((32,), (2,))
    assert (found.n_step, found.initial_discount, found.discount, found.hidden) == (10, 0.95, 0.99, 128)


@pytest.mark.parametrize(
    ("size", "discount", "v_max"), [("small", 0.99, 10), ("medium", 0.99, 10), ("paper", 0.997, 33)]
)
def test_values_of_an_environment_of_ones_own_fit_the_discount_of_bbf(size: str, discount: float, v_max: float) -> None:
    """Random play earns 0.05 a step and a trained agent is taken to earn twice as much: 0.1 / (1 − γ)."""
    fitted = {"fitted_to": "64x64x3 images, 4 actions, 10000 steps, rewards to 1, 0.05 a step", "size": size}
    found = pv.config.build.base("env/module:Name", "bbf", "bbf", fitted).agent
    assert (found.discount, found.v_max) == (discount, v_max)


def test_an_agent_that_is_never_reset_is_not_reset_in_short_runs() -> None:
    agent = build("atari/alien", method="bbf", reset_every=0).agent
    assert agent.fitted_to_steps(1_000)["reset_every"] == 0
