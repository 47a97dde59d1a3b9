"""The numbers of the baselines as their released configurations have them, on every family of tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import playvirtual
from playvirtual.config.baselines import METHODS
from playvirtual.config.build import build
from playvirtual.config.record import from_dict, to_dict
from playvirtual.errors import InputError
from playvirtual.options import leaves

SHARED = {"discount": 0.99, "batch_size": 32, "adam_eps": 1.5e-4, "capacity": 100_000, "steps": 100_000, "K": 0}
CNN = {"channels": (32, 64, 64), "kernel_sizes": (8, 4, 3), "strides": (4, 2, 1), "hidden": 512}
# google/dopamine, labs/atari_100k/configs: DER.gin, OTRainbow.gin, DrQ.gin; aravindsrinivas/curl_rainbow, main.py.
ATARI: dict[str, dict[str, Any]] = {
    "der": {
        **CNN,
        "n_step": 10,
        "updates_per_step": 1,
        "learning_starts": 1_600,
        "target_period": 2_000,
        "learning_rate": 1e-4,
        "noisy_sigma": 0.1,
        "atoms": 51,
        "v_max": 10,
        "eval_epsilon": 0.001,
        "shift_pad": 0,
        "intensity_scale": 0,
        "priority_exponent": 0.5,
        "priority_beta_start": 0.5,
        "priority_beta_end": 0.5,
    },
    "otr": {
        **CNN,
        "n_step": 3,
        "updates_per_step": 8,
        "learning_starts": 20_000,
        "target_period": 500 * 8,
        "learning_rate": 6.25e-5,
        "noisy_sigma": 0,
        "epsilon_end": 0.01,
        "epsilon_decay_steps": 50_000,
        "eval_epsilon": 0.001,
        "atoms": 51,
        "shift_pad": 0,
    },
    "drq": {
        **CNN,
        "n_step": 10,
        "updates_per_step": 1,
        "learning_starts": 1_600,
        "target_period": 1,
        "target_tau": 1,
        "learning_rate": 1e-4,
        "epsilon_end": 0.1,
        "epsilon_decay_steps": 5_000,
        "eval_epsilon": 0.05,
        "atoms": 1,
        "priority_exponent": 0,
        "shift_pad": 4,
        "intensity_scale": 0.05,
    },
    "curl": {
        "channels": (32, 64),
        "kernel_sizes": (5, 5),
        "strides": (5, 5),
        "hidden": 256,
        "n_step": 20,
        "updates_per_step": 1,
        "learning_starts": 1_600,
        "target_period": 2_000,
        "learning_rate": 1e-4,
        "max_grad_norm": 10,
        "noisy_sigma": 0.1,
        "priority_exponent": 0.5,
        "priority_beta_start": 0.4,
        "priority_beta_end": 1,
        "contrast_size": 128,
        "contrast_scale": 0.1,
        "contrast_tau": pytest.approx(1 - 0.999),
        "contrast_weight": 1,
        "contrast_pad": 84 - 80,
        "shift_pad": 0,
        "intensity_scale": 0,
    },
}
COMMON = {
    "channels": (32,) * 4,
    "strides": (2, 1, 1, 1),
    "latent": 50,
    "hidden": 1_024,
    "discount": 0.99,
    "initial_temperature": 0.1,
    "q_tau": 0.01,
    "actor_period": 2,
    "critic_target_period": 2,
    "learning_starts": 1_000,
    "log_std_min": -10,
    "log_std_max": 2,
    "learning_rate": 1e-3,
    "updates_per_step": 1,
    "crop_size": 84,
    "frame_stack": 3,
    "K": 0,
}
# MishaLaskin/curl, train.py (its issue 15 on the batch); denisyarats/drq, config.yaml; denisyarats/pytorch_sac_ae.
DMC: dict[str, dict[str, Any]] = {
    "curl": {
        "batch_size": 512,
        "encoder_tanh": False,
        "contrast_learning_rate": 1e-3,
        "temperature_learning_rate": 1e-4,
        "temperature_beta1": 0.5,
        "encoder_tau": 0.05,
        "image_size": 100,
        "capacity": 100_000,
    },
    "drq": {
        "batch_size": 512,
        "encoder_tanh": True,
        "temperature_learning_rate": 1e-3,
        "temperature_beta1": 0.9,
        "encoder_tau": 0.01,
        "image_size": 84,
        "shift_pad": 4,
        "views": 2,
        "target_views": 2,
        "capacity": 100_000,
    },
    "sac-ae": {
        "batch_size": 128,
        "encoder_tanh": True,
        "temperature_learning_rate": 1e-4,
        "temperature_beta1": 0.5,
        "encoder_tau": 0.05,
        "image_size": 84,
        "decoder_learning_rate": 1e-3,
        "decoder_weight_decay": 1e-7,
        "latent_weight": 1e-6,
    },
}
TASKS = {
    "discrete": ("atari/alien", "minatar/breakout", "toy/catch"),
    "continuous": ("dmc/walker-walk", "dmc/cheetah-run", "toy/reach"),
}
EVERYWHERE = [(method, task) for method, (agents, _, _) in METHODS.items() for kind in agents for task in TASKS[kind]]


def values(task: str, method: str, **options: Any) -> dict[str, Any]:
    return {f.name: value for f, _, value in leaves(build(task, method=method, **options))}


@pytest.mark.parametrize("method", ATARI)
def test_hyperparameters_on_atari(method: str) -> None:
    found, wanted = values("atari/alien", method), {**SHARED, **ATARI[method]}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("method", DMC)
def test_hyperparameters_on_dmcontrol(method: str) -> None:
    found, wanted = values("dmc/walker-walk", method), {**COMMON, **DMC[method]}
    assert {name: found[name] for name in wanted} == wanted
    assert found["action_repeat"] == 2  # the paper's table


def test_four_games_weigh_the_contrastive_loss_less() -> None:
    games = ("pong", "boxing", "private_eye", "freeway", "alien")
    assert [values(f"atari/{game}", "curl")["contrast_weight"] for game in games] == [0.01] * 4 + [1.0]


def test_cheetah_run_has_its_own_learning_rate_with_curl() -> None:
    for name in ("learning_rate", "contrast_learning_rate"):
        assert [values(f"dmc/{task}", "curl")[name] for task in ("cheetah-run", "hopper-hop")] == [2e-4, 1e-3]


def test_no_run_of_500000_frames_outgrows_the_replay_buffer_of_sac_ae() -> None:
    """Two frames per action at least, an entry for each, and one for the end of each episode of 500 actions."""
    assert values("dmc/walker-walk", "sac-ae")["capacity"] > 250_000 + 250_000 // 500


@pytest.mark.parametrize(("method", "task"), EVERYWHERE)
def test_every_configuration_survives_json(method: str, task: str) -> None:
    config = build(task, method=method)
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(("method", "virtual"), [("curl", "curl-virtual"), ("drq", "drq-virtual")])
@pytest.mark.parametrize("task", ["atari/pong", "dmc/walker-walk", "toy/catch", "toy/reach"])
def test_virtual_trajectories_on_top_change_the_objective_alone(method: str, virtual: str, task: str) -> None:
    one, other, ours = values(task, method), values(task, virtual), values(task, "playvirtual")
    changed = {name for name in one if one[name] != other[name]}
    assert changed == {"method", "K", "M"}
    assert (other["K"], other["M"]) == (ours["K"], ours["M"])


def test_single_options_have_the_last_word() -> None:
    found = values("atari/pong", "drq", epsilon_end=0.01, eval_epsilon=0.001, learning_starts=2_000)
    assert (found["epsilon_end"], found["eval_epsilon"], found["learning_starts"]) == (0.01, 0.001, 2_000)


def test_an_option_of_other_agents_is_refused_by_what_the_user_may_choose() -> None:
    """An agent of its method's name is named alone, another one with the method that picks it."""
    message = "option: 'epsilon_end' is not one of the agent der; allowed: with otr, drq-dqn (method drq), sr-spr, bbf"
    with pytest.raises(InputError) as raised:
        build("atari/pong", method="der", epsilon_end=0.1)
    assert str(raised.value) == message


@pytest.mark.parametrize(("method", "agent"), [("rl", "sac"), ("curl", "curl-sac"), ("sac-ae", "sac-ae")])
def test_an_option_that_discrete_agents_have_too_is_refused_by_the_agents_of_the_task(method: str, agent: str) -> None:
    """Most agents that shift images have discrete actions; on toy/reach DrQ alone does."""
    with pytest.raises(InputError) as raised:
        build("toy/reach", method=method, shift_pad=4)
    assert str(raised.value) == (
        f"option: 'shift_pad' is not one of the agent {agent}; allowed: with drq-sac (method drq)"
    )


@pytest.mark.parametrize("method", ["der", "otr"])
def test_continuous_actions_are_refused(method: str) -> None:
    with pytest.raises(InputError, match=f"method: '{method}' is not for 'toy/reach' with continuous actions; allowed"):
        build("toy/reach", method=method)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon_end": 1.5}, "epsilon_end: 1.5 is not allowed; allowed: 0 to 1"),
        ({"epsilon_decay_steps": 0}, "epsilon_decay_steps: 0 is not allowed; allowed: 1 or more"),
        (
            {"contrast_size": 3},
            r"option: 'contrast_size' is not one of the agent otr; allowed: with curl-rainbow \(method curl\)",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        build("atari/pong", method="otr", **options)
    assert "\n" not in str(raised.value)


# Its numbers and its registration, its row in the studies, the title of its column and the color of its curve.
NAMED_IN = {
    "config/baselines.py",
    "study/sweep/experiments.py",
    "study/scores.py",
    "study/report/plots.py",
}
PUBLISHED = "published/__init__.py"  # the columns of the paper's Atari table


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (r"\bDER\b|\"der\"|\bDer[A-Z]", {"agents/efficient_rainbow.py", PUBLISHED}),
        (r"\botr\b|\bOtr|\bOTR", {"agents/efficient_rainbow.py", PUBLISHED}),
        (r"\bcurl|\bCurl|\bCURL", {"agents/curl.py", "agents/networks/contrastive.py", PUBLISHED}),
        # Its DQN is the ε-greedy Rainbow that OTR has as well.
        (r"\bdrq|\bDrq|\bDrQ|\bDRQ", {"agents/drq.py", "agents/efficient_rainbow.py", PUBLISHED}),
        (r"\bsac[-_]ae|\bSacAe|\bSAC\+AE|\bSAC_AE", {"agents/sac_ae.py"}),
    ],
    ids=["der", "otr", "curl", "drq", "sac-ae"],
)
def test_the_files_that_know_a_baseline(names: str, own: set[str]) -> None:
    """The loop, the replay buffer, run folders, the command line, exports and benchmarks know the contract alone."""
    root = Path(playvirtual.__file__).parent
    found = {
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if re.search(names, path.read_text("utf-8"))
    }
    assert found == NAMED_IN | own
