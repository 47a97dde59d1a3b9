"""The paper's table "Hyperparameters used for Atari", row by row, and what presets and methods change."""

import dataclasses
from contextlib import closing
from typing import Any

import pytest
import torch

from playvirtual.agents.networks.rainbow import DuelingHead, NoisyLinear
from playvirtual.agents.rainbow import Rainbow
from playvirtual.config.build import build, method_changes, method_names, method_note
from playvirtual.config.hyperparameters import METHODS
from playvirtual.config.record import from_dict, to_dict
from playvirtual.config.schema import PRESETS, Config, num_virtual
from playvirtual.envs.families.atari import ATARI_100K
from playvirtual.errors import InputError
from playvirtual.method import DiscreteActions
from playvirtual.options import leaves
from playvirtual.training.trainer import Trainer

PONG = build("atari/pong")
AGENT: Any = PONG.agent

# Row of the table -> (the value printed there, where the preset has it).
TABLE = {
    "Gray-scaling": (True, PONG.environment.grayscale),
    "Frame stack": (4, PONG.environment.frame_stack),
    "Observation downsampling": ((84, 84), (PONG.environment.image_size,) * 2),
    "Augmentation": (
        "random shift & intensity",
        "random shift & intensity" if AGENT.shift_pad and AGENT.intensity_scale else "",
    ),
    "Action repeat": (4, PONG.environment.action_repeat),
    "Training steps": (100_000, PONG.steps),
    "Max frames per episode": (108_000, PONG.environment.max_episode_frames),
    "Replay buffer size": (100_000, PONG.replay.capacity),
    "Minimum replay size for sampling": (2_000, PONG.replay.learning_starts),
    "Mini-batch size": (32, AGENT.batch_size),
    "Optimizer: learning rate": (0.0001, AGENT.learning_rate),
    "Optimizer: beta 1": (0.9, AGENT.adam_beta1),
    "Optimizer: beta 2": (0.999, AGENT.adam_beta2),
    "Optimizer: epsilon": (0.00015, AGENT.adam_eps),
    "Max gradient norm": (10, AGENT.max_grad_norm),
    "Support of Q-distribution": (51, AGENT.atoms),
    "Discount factor": (0.99, AGENT.discount),
    "Reward clipping": ((-1, 1), (-PONG.environment.reward_clip, PONG.environment.reward_clip)),
    "Priority exponent": (0.5, AGENT.priority_exponent),
    "Priority correction": ((0.4, 1), (AGENT.priority_beta_start, AGENT.priority_beta_end)),
    "Noisy nets parameter": (0.5, AGENT.noisy_sigma),
    "Evaluation trajectories": (100, PONG.evaluation.eval_episodes),
    "Replay period and updates per step": (2, AGENT.updates_per_step),
    "Multi-step return length": (10, AGENT.n_step),
    "Q network: channels": ((32, 64, 64), AGENT.channels),
    "Q network: filter size": ((8, 4, 3), AGENT.kernel_sizes),
    "Q network: stride": ((4, 2, 1), AGENT.strides),
    "Q network: hidden units": (256, AGENT.hidden),
    "Target network update period": (1, AGENT.target_period),
    "tau (EMA coefficient)": (0, 1 - AGENT.target_tau),
    "K": (9, PONG.objective.K),
    "M": (2 * 6, num_virtual(PONG.objective.M, 6)),
    "lambda_pred": (1, PONG.objective.lambda_pred),
    "lambda_cyc^max": (1, PONG.objective.lambda_cyc_max),
    "Warmup: i_end": (50_000, PONG.objective.i_end),
}


@pytest.mark.parametrize("row", TABLE)
def test_table(row: str) -> None:
    printed, ours = TABLE[row]
    assert ours == printed


# Where the table is silent: what the text says or the released code does.
SILENT: dict[str, Any] = {
    "step_unit": "agent",  # 100k steps are 400k frames
    "stack_fill": "zeros",
    "life_loss_is_terminal": True,  # in training
    "latent": 0,  # z is the feature map of 64 × 7 × 7
    "v_max": 10.0,  # 51 atoms on [−10, 10]
    "shift_pad": 4,
    "intensity_scale": 0.05,
    "priority_beta_steps": 100_000,
    "target_moment": "after-step",
    "eval_every": 0,  # at the end only
    "eval_envs": 100,
    "eval_epsilon": 0.001,
    "metric": "projection",
    "latent_distance": "cosine",
    "constraint": "end",
    "virtual_actions": "uniform",
    "sigma": 0.05,
    "cycle_trains_forward": True,
    "real_cycle": False,
}

# What the paper's ablations and baselines leave out or put in; everything else is PlayVirtual's.
ABLATIONS: dict[str, dict[str, Any]] = {
    "rl": {"K": 0, "M": "0"},
    "spr": {"M": "0"},
    "spr-bdm": {"M": "0", "real_cycle": True},
    "playvirtual": {},
    "playvirtual-nd": {"cycle_trains_forward": False},
    "playvirtual-latent": {"metric": "latent"},
    "playvirtual-every-step": {"constraint": "every"},
    "playvirtual-no-warmup": {"i_end": 0},
    "playvirtual-perturbed": {"virtual_actions": "perturbed"},
    "playvirtual-real-cycle": {"real_cycle": True},
}


def test_where_the_table_is_silent() -> None:
    found = {f.name: value for f, _, value in leaves(PONG)}
    assert {name: found[name] for name in SILENT} == SILENT


@pytest.mark.parametrize("task", ["atari/pong", "dmc/walker-walk"])
@pytest.mark.parametrize("method", ABLATIONS)
def test_ablations(method: str, task: str) -> None:
    changed = {name: value for name, (_, value) in differences(build(task), build(task, method=method)).items()}
    changed.pop("method", None)
    assert changed == ABLATIONS[method]


def test_rows_that_are_structure() -> None:
    """Optimizer: Adam. Update: distributional Q. Dueling: true. Exploration: noisy nets."""
    agent = Rainbow(PONG, (4, 84, 84), DiscreteActions(6))
    assert isinstance(agent.optimizer, torch.optim.Adam)
    assert isinstance(agent.head, DuelingHead)
    assert agent.head(torch.rand(1, 64, 7, 7)).shape == (1, 6, 51)
    layers = [m for m in agent.head.modules() if isinstance(m, NoisyLinear)]
    assert len(layers) == 4


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    theirs = {f.name: value for f, _, value in leaves(other)}
    return {f.name: (value, theirs[f.name]) for f, _, value in leaves(one) if value != theirs[f.name]}


def test_reference_differs_where_the_released_code_does() -> None:
    changed = differences(PONG, build("atari/pong", preset="reference"))
    assert changed == {
        "preset": ("paper", "reference"),
        "noisy_sigma": (0.5, 0.1),
        "target_moment": ("after-step", "before-step"),
        "latent_distance": ("cosine", "mse"),
    }


@pytest.mark.parametrize("task", ["minatar/breakout", "toy/catch"])
def test_reference_is_about_the_agent_not_the_task(task: str) -> None:
    changed = differences(PONG, build("atari/pong", preset="reference"))
    assert differences(build(task), build(task, preset="reference")) == changed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["atari/alien", "minatar/breakout", "toy/catch"])
def test_a_method_changes_what_it_says_and_nothing_else(method: str, task: str) -> None:
    changed = differences(build(task), build(task, method=method))
    changed.pop("method", None)
    assert changed.keys() <= method_changes(method).keys()
    for name, (_, value) in changed.items():
        assert value == method_changes(method)[name]


def test_single_options_have_the_last_word() -> None:
    """Over the preset, which changes the noise and the target, and over the method, which changes K and M."""
    options = {"noisy_sigma": 0.3, "K": 2, "M": "3"}
    config = build("atari/pong", preset="reference", method="rl", **options)
    found = {f.name: value for f, _, value in leaves(config)}
    assert {name: found[name] for name in options} == options
    assert found["target_moment"] == "before-step"


def test_multiples_of_the_number_of_actions() -> None:
    counts = {"12": 12, "2A": 12, "0.5A": 3, "0.1A": 1, "0.01A": 1, "0A": 0, "0": 0}
    assert {M: num_virtual(M, 6) for M in counts} == counts


def test_every_method_is_explained() -> None:
    assert all(method_note(method) for method in method_names())


@pytest.mark.parametrize("game", ATARI_100K)
def test_all_games_share_the_settings(game: str) -> None:
    assert len(ATARI_100K) == 26
    assert differences(PONG, build(f"atari/{game}")).keys() <= {"task"}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["atari/pong", "minatar/freeway", "toy/catch"])
def test_json_round_trip(task: str, preset: str) -> None:
    config = build(task, preset=preset, seed=7, channels=(8,), kernel_sizes=(3,), strides=(1,))
    assert from_dict(to_dict(config)) == config


def test_options_reach_their_fields_and_are_typed() -> None:
    config = build(
        "atari/pong",
        K="3",
        M=5,
        learning_rate="3e-4",
        channels="8,8",
        kernel_sizes="4,4",
        strides="2,2",
        grayscale="false",
        steps="1e4",
    )
    assert isinstance(config.agent, type(AGENT))
    assert (config.objective.K, config.objective.M) == (3, "5")
    assert (config.agent.learning_rate, config.agent.channels) == (3e-4, (8, 8))
    assert config.environment.grayscale is False
    assert config.steps == 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lamda_pred": 1}, "option: 'lamda_pred' is not known; did you mean 'lambda_pred'?"),
        ({"K": -1}, "K: -1 is not allowed; allowed: 0 or more"),
        ({"K": "many"}, "K: 'many' is not allowed; allowed: a whole number"),
        ({"K": True}, "K: True is not allowed; allowed: a whole number"),
        ({"K": 2.5}, "K: 2.5 is not allowed; allowed: a whole number"),
        ({"M": "2B"}, "M: '2B' is not allowed"),
        ({"discount": 1.5}, "discount: 1.5 is not allowed; allowed: 0 to 1"),
        ({"adam_beta2": 1.0}, "adam_beta2: 1.0 is not allowed; allowed: 0 to 0.999999"),
        ({"learning_rate": "nan"}, "learning_rate: nan is not allowed; allowed: a finite number, 0 or more"),
        ({"learning_rate": "inf"}, "learning_rate: inf is not allowed; allowed: a finite number, 0 or more"),
        ({"learning_rate": -0.5}, "learning_rate: -0.5 is not allowed; allowed: 0 or more"),
        ({"discount": "inf"}, "discount: inf is not allowed; allowed: 0 to 1"),
        ({"seed": -1}, "seed: -1 is not allowed; allowed: 0 to 2147483647"),
        ({"v_max": 0.0}, "v_max: 0.0 is not allowed; allowed: 1e-06 or more"),
        ({"hidden": 1e30}, f"hidden: {int(1e30)} is not allowed; allowed: 1 to 2147483647"),
        ({"threads": 1e12}, "threads: 1000000000000 is not allowed; allowed: 0 to 1024"),
        ({"M": "9999999999"}, "M: '9999999999' is not allowed"),
        ({"steps": 1_500}, "steps: 1500 is not allowed; allowed: 2000 or more, as the first update follows 2000 agent"),
        (
            {"steps": 40, "learning_starts": 40, "updates_per_step": 0.25},
            "steps: 40 is not allowed; allowed: 43 or more",
        ),
        ({"metric": "l2"}, "metric: 'l2' is not known; allowed: latent, projection"),
        ({"grayscale": "maybe"}, "grayscale: 'maybe' is not allowed; allowed: true, false"),
        ({"channels": "8,8"}, "channels, kernel_sizes, strides:"),
        ({"channels": "0,8,8"}, "channels: 0 is not allowed; allowed: 1 or more"),
        ({"device": "tpu"}, "device: 'tpu' is not allowed; allowed: auto, cpu, cuda, cuda:N"),
        ({"method": "playvirtul"}, "method: 'playvirtul' is not known; did you mean 'playvirtual'?"),
        ({"preset": "papers"}, "preset: 'papers' is not known; did you mean 'paper'?"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        build("atari/pong", **options)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", ["toy/catch", "minatar/breakout"])
@pytest.mark.parametrize(("option", "only"), [({"image_size": 84}, 10), ({"grayscale": True}, False)])
def test_a_grid_has_the_size_that_it_has(task: str, option: dict[str, Any], only: int) -> None:
    (name,) = option
    with pytest.raises(InputError, match=f"^{name}: {option[name]} is not allowed; allowed: {only}, as {task} shows"):
        build(task, **option)
    assert build(task, **{name: only}) == build(task)


@pytest.mark.parametrize(("rate", "least"), [(2, 60), (0.5, 61), (0.25, 63)])
def test_the_shortest_run_makes_its_first_update_in_its_last_step(rate: float, least: int) -> None:
    options: dict[str, Any] = {
        "learning_starts": 60,
        "updates_per_step": rate,
        "K": 2,
        "batch_size": 1,
        "device": "cpu",
    }
    with pytest.raises(InputError, match=f"allowed: {least} or more"):
        build("toy/catch", steps=least - 1, **options)
    with closing(Trainer(build("toy/catch", steps=least, **options))) as training:
        while not training.done:
            assert not training.learner.updates
            training.train(1)
        assert training.learner.updates


def test_without_updates_any_length_will_do() -> None:
    assert build("atari/pong", steps=10, updates_per_step=0).steps == 10


def test_field_names_are_unique_across_groups() -> None:
    """They become flat command-line flags."""
    names = [f.name for f, _, _ in leaves(PONG)]
    assert len(names) == len(set(names))
    assert all("help" in f.metadata for f, _, _ in leaves(PONG))


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PONG.steps = 5  # type: ignore[misc]
