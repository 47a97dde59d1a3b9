"""The paper's table "Hyperparameters used for DMControl", row by row, and what the released code changes."""

from typing import Any

import pytest

from playvirtual.config.build import build
from playvirtual.config.hyperparameters import METHODS
from playvirtual.config.record import from_dict, to_dict
from playvirtual.config.schema import Config, SacConfig
from playvirtual.errors import InputError
from playvirtual.options import leaves

ROWS: dict[str, dict[str, Any]] = {
    "Frame stack": {"frame_stack": 3},
    "Observation rendering": {"image_size": 100},
    "Observation downsampling": {"crop_size": 84},
    "Augmentation": {"crop_size": 84, "intensity_scale": 0.05},  # random crop & intensity
    "Replay buffer size": {"capacity": 100_000},
    "Initial exploration steps": {"learning_starts": 1_000},
    "Evaluation episodes": {"eval_episodes": 10},
    "(β₁, β₂) of (θ_f, ξ_h, ξ_b, ω)": {"adam_beta1": 0.9, "adam_beta2": 0.999},
    "(β₁, β₂) of α": {"temperature_beta1": 0.5, "adam_beta2": 0.999},
    "Learning rate (θ_f, ω)": {"learning_rate": 1e-3},
    "Learning rate (θ_f, ξ_h, ξ_b)": {"auxiliary_learning_rate": 5e-4},
    "Learning rate (α)": {"temperature_learning_rate": 1e-4},
    "Policy batch size": {"batch_size": 512},
    "Auxiliary batch size": {"auxiliary_batch_size": 128},
    "Q-function EMA τ": {"q_tau": 0.01},
    "Critic target update freq": {"critic_target_period": 2},
    "Discount factor": {"discount": 0.99},
    "Initial temperature": {"initial_temperature": 0.1},
    "Target network update period": {"momentum_period": 1},
    "Target network EMA τ": {"momentum_tau": 0.05},
    "K": {"K": 6},
    "M": {"M": "10"},
    "λ_pred": {"lambda_pred": 1.0},
    "λ_cyc^max": {"lambda_cyc_max": 1.0},
    "Warmup": {"i_end": 50_000},
    # Not in the table but in the text beside it.
    "DMControl-100k": {"steps": 100_000, "step_unit": "environment"},
    "tested every 5k environment steps": {"eval_every": 5_000},
    "projection and prediction head": {"projection_hidden": 512},
    "encoder": {"channels": (64, 64, 64, 64), "encoder_tanh": True},
    # In neither, but in the released code.
    "colours, a first frame that is repeated": {"grayscale": False, "stack_fill": "repeat"},
    "rewards as they are": {"reward_clip": 0.0, "life_loss_is_terminal": False},
    "the suite's own time limit": {"max_episode_frames": 0},
    "filters of 3 × 3": {"kernel_sizes": (3, 3, 3, 3), "strides": (2, 1, 1, 1)},
    "sizes": {"latent": 50, "hidden": 1024, "dynamics_hidden": 512},
    "log σ": {"log_std_min": -10.0, "log_std_max": 2.0},
    "one update per agent step": {"updates_per_step": 1.0},
    "Adam's own ε": {"adam_eps": 1e-8},
    "one optimizer of the auxiliary objective": {"separate_encoder_optimizer": False, "target_projection": "copy"},
    "gradient norm of the auxiliary update": {"max_grad_norm": 10.0},
    "actor every second update": {"actor_period": 2},
    "τ of the critic's target encoder": {"encoder_tau": 0.05},
    "the mean action is evaluated": {"eval_epsilon": 0.0, "eval_envs": 10},
    "the objective beside Eq. 2 and 4": {
        "metric": "projection",
        "latent_distance": "cosine",
        "constraint": "end",
        "virtual_actions": "uniform",
        "cycle_trains_forward": True,
        "real_cycle": False,
    },
}
ACTION_REPEATS = {
    "finger-spin": 2,
    "cartpole-swingup": 8,
    "reacher-easy": 4,
    "cheetah-run": 4,
    "walker-walk": 2,
    "ball_in_cup-catch": 4,
}


def values(config: Config) -> dict[str, Any]:
    return {f.name: value for f, _, value in leaves(config)}


@pytest.mark.parametrize("row", ROWS)
def test_table_row(row: str) -> None:
    found = values(build("dmc/cartpole-swingup"))
    assert {name: found[name] for name in ROWS[row]} == ROWS[row]


@pytest.mark.parametrize(("task", "repeat"), ACTION_REPEATS.items())
def test_action_repeat_and_learning_rates(task: str, repeat: int) -> None:
    found = values(build(f"dmc/{task}"))
    assert found["action_repeat"] == repeat
    cheetah = task == "cheetah-run"
    assert found["learning_rate"] == (2e-4 if cheetah else 1e-3)
    assert found["auxiliary_learning_rate"] == (1e-4 if cheetah else 5e-4)


def test_a_run_is_counted_in_environment_frames() -> None:
    config = build("dmc/cartpole-swingup")
    assert (config.frames_per_step, config.agent_steps) == (8, 12_500)
    assert build("dmc/cartpole-swingup", steps=100_001).agent_steps == 12_501  # whole ones
    agent = build("dmc/cartpole-swingup", step_unit="agent")
    assert (agent.frames_per_step, agent.agent_steps) == (1, 100_000)


def test_other_tasks_of_the_suite_have_defaults() -> None:
    for task, repeat in {
        "walker-run": 2,
        "cartpole-balance": 8,
        "hopper-hop": 4,
        "quadruped-walk": 4,
    }.items():
        assert build(f"dmc/{task}").environment.action_repeat == repeat


def test_what_the_released_code_changes() -> None:
    paper, reference = (values(build("dmc/reacher-easy", preset=p)) for p in ("paper", "reference"))
    changed = {name: reference[name] for name in paper if paper[name] != reference[name]}
    assert changed == {
        "preset": "reference",
        "projection_hidden": 100,
        "encoder_tanh": False,
        "separate_encoder_optimizer": True,
        "target_projection": "independent",
        "momentum_period": 2,
        "latent_distance": "normalised-mse",
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_method_survives_json(method: str) -> None:
    config = build("dmc/walker-walk", method=method)
    assert isinstance(config.agent, SacConfig)
    assert from_dict(to_dict(config)) == config


def test_field_names_are_unique() -> None:
    names = [f.name for f, _, _ in leaves(build("dmc/walker-walk"))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_size": 101}, "crop_size: 101 is not allowed; allowed: 1 to image_size, 100"),
        ({"log_std_min": 3}, "log_std_min: 3.0 is not allowed"),
        ({"v_max": 10}, "option: 'v_max' is not one of dmc/walker-walk, which has continuous actions"),  # Rainbow's
        ({"strides": (2, 1)}, "channels, kernel_sizes, strides"),
        ({"capacity": 9}, "capacity: 9 is not allowed; allowed: 10 or more, for the 6 steps that a batch looks ahead"),
        (
            {"capacity": 7, "frame_stack": 1},
            "capacity: 7 is not .* ahead, the 1 frame of an observation and the last one",
        ),
        ({"learning_starts": 6}, "learning_starts: 6 is not allowed; allowed: more than 6"),
        ({"steps": 1_998}, "steps: 1998 is not allowed; allowed: 1999 or more"),  # 2 frames per agent step
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("dmc/walker-walk", **options)
