"""Settings that are fitted to an environment of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.agents.agent import make_agent
from playvirtual.config import registry
from playvirtual.config.build import build
from playvirtual.config.fit import Fit, choose_size, reasons, sized_changes, value_range
from playvirtual.config.record import from_dict, to_dict
from playvirtual.config.schema import SIZES, AgentConfig, Config, RainbowConfig
from playvirtual.envs import factories
from playvirtual.envs.inspection import EnvInfo, inspect_env
from playvirtual.errors import InputError
from playvirtual.options import option
from playvirtual.study.settings import changes
from tests.envs.test_own_environments import Dot

DOT = factories.task_of(Dot)
FITS = st.builds(
    Fit,
    st.tuples(*[st.integers(1, 1000)] * 3),
    st.integers(1, 1000),
    st.integers(1, 10**9),
    st.integers(0, 64),
    st.sampled_from([0.001, 0.5, 1.0, 25.0, 1e6]),
    st.sampled_from([0.0, 1.5e-5, 0.012, 3.0]),
    st.sampled_from([0.0, 0.07, 0.5, 1.0]),
)
PAID = Fit((1, 8, 8), 4, 5_000, largest_reward=1.0, mean_reward=1.0)


@settings(max_examples=30)
@given(FITS)
def test_what_is_recorded_can_be_read_again(fit: Fit) -> None:
    assert Fit.parse(str(fit)) == fit


def test_rewards_are_recorded_in_three_digits() -> None:
    paid, unpaid = (EnvInfo("discrete", 4, (1, 8, 8), rewards=paid) for paid in ((0.0, -2.0, math.nan, 0.1234), (0.0,)))
    assert str(Fit.of(paid, 50)) == "8x8x1 images, 4 actions, 50 steps, rewards to 2, 0.708 a step"
    assert str(Fit.of(unpaid, 50)) == "8x8x1 images, 4 actions, 50 steps"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12x12x3",
        "0x12x3 images, 4 actions, 5 steps",
        "9x9x3 images, 4 actions, x",
        "9x9x3 images, 4 actions, 5 steps, rewards to 1.1.1, 0 a step",
        "9x9x3 images, 4 actions, 5 steps, rewards to 1e999, 0 a step",
        "9x9x3 images, 4 actions, 5 steps, background 2",
    ],
)
def test_a_forged_record_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^fitted_to: "):
        Fit.parse(text)


@pytest.mark.parametrize(
    ("shape", "on_gpu", "size"),
    [
        ((3, 12, 12), False, "small"),
        ((3, 12, 12), True, "small"),
        ((3, 400, 600), False, "medium"),
        ((1, 20, 21), True, "paper"),
    ],
)
def test_images_and_device_decide_the_size(shape: tuple[int, int, int], on_gpu: bool, size: str) -> None:
    assert choose_size(shape, on_gpu=on_gpu) == size


def test_a_small_environment_gets_small_networks_with_reasons() -> None:
    config = build(DOT, env_args={"size": 12, "actions": 3}, steps=4_000)
    assert isinstance(config.agent, RainbowConfig)
    assert (config.size, config.environment.image_size, config.agent.channels) == ("small", 12, (32,))
    assert (config.objective.M, config.replay.learning_starts, config.objective.i_end) == ("1A", 100, 2_000)
    said = reasons(config, on_gpu=False)
    assert said[0] == "size small: images are 12×12"
    assert "stacks of 2 to see motion" in said[1]
    assert "stacks of 1 (" in reasons(build(DOT, frame_stack=1), on_gpu=False)[1]
    assert "as asked for; small would fit" in reasons(build(DOT, size="paper"), on_gpu=False)[0]


@pytest.mark.parametrize(
    ("fit", "clip", "discount", "v_max"),
    [
        (PAID, 1.0, 0.97, 33.0),  # every step pays, as CartPole's do: no more than that for 33 steps
        (PAID, 1.0, 0.99, 100.0),
        (replace(PAID, mean_reward=0.276), 1.0, 0.97, 18.0),  # twice what random play earns in 33 steps
        (replace(PAID, mean_reward=0.004), 1.0, 0.97, 2.0),  # one reward, rarely
        (replace(PAID, largest_reward=0.8, mean_reward=0.004), 1.0, 0.97, 1.6),
        (replace(PAID, largest_reward=0.0, mean_reward=0.0), 1.0, 0.97, 2.0),  # none was seen
        (replace(PAID, largest_reward=50.0, mean_reward=20.0), 1.0, 0.97, 33.0),  # clipped
        (replace(PAID, largest_reward=50.0, mean_reward=2.0), 0.0, 0.95, 100.0),  # not clipped
    ],
)
def test_values_have_the_room_that_returns_need(fit: Fit, clip: float, discount: float, v_max: float) -> None:
    assert value_range(fit, clip, discount) == v_max


class Paying(Dot):
    """Every step pays, and the third ends the episode."""

    def reset(self, **options: Any) -> Any:
        self.time = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.time += 1
        assert self.time <= 3, "no step follows the last one of an episode"
        return (*super().step(action)[:1], 0.5, self.time == 3, False, {})


class OneStep(Dot):
    """Every episode has one step, which pays 1; a step after its end pays 100."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.ended = False
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *_ = super().step(action)
        reward, self.ended = (100.0 if self.ended else 1.0), True
        return observation, reward, True, False, {}


def test_random_play_begins_again_when_an_episode_has_ended() -> None:
    assert set(inspect_env(factories.task_of(OneStep)).rewards) == {1.0}


def test_values_follow_from_the_rewards_of_random_play_with_a_reason() -> None:
    task = factories.task_of(Paying)
    config = build(task, steps=4_000)
    assert isinstance(config.agent, RainbowConfig)
    assert config.fitted_to.endswith("4000 steps, rewards to 0.5, 0.5 a step")
    assert (config.agent.v_max, config.agent.discount, config.replay.random_steps) == (10.0, 0.95, 3_000)
    said = reasons(config, on_gpu=False)
    assert "first 100 at random, ever fewer random actions in the next 3,000" in said[-2]
    assert said[-1].startswith(
        "values within ±10 at a discount of 0.95: random play earned rewards of up to 0.5, 0.5 per step, clipped to ±1"
    )
    paper = build(task, size="paper")
    assert (paper.agent.v_max, paper.agent.discount, paper.replay.random_steps) == (50.0, 0.99, 0)  # type: ignore[attr-defined]
    assert "random play earned nothing" in reasons(build(DOT, v_max=3), on_gpu=False)[-1]
    assert build(DOT, method="otr", size="small").replay.random_steps == 0  # it has an ε of its own


@dataclass(frozen=True)
class Noisy(AgentConfig):
    """An agent of one's own that explores by noise."""


@dataclass(frozen=True)
class Greedy(AgentConfig):
    """One that explores by random actions, whatever it calls their share."""

    epsilon_greedy = True

    chance: float = option("of a random action", low=0, high=1, default=0.1)


def test_agents_that_explore_by_random_actions_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_all()
    for entries in ("_agents", "_methods"):
        monkeypatch.setattr(registry, entries, dict(getattr(registry, entries)))
    for name, config in (("noisy", Noisy), ("greedy", Greedy)):
        options = config(batch_size=8, updates_per_step=1.0)
        registry.register_agent(name, "nowhere:Agent", config=config, actions="discrete", hyperparameters=options)
    steps = [build(DOT, method=m, size="small", steps=4_000).replay.random_steps for m in ("noisy", "greedy")]
    assert steps == [3_000, 0]


class Bright(Dot):
    """A bright image, and beside it a number that is shown as a dark plane."""

    def __init__(self, with_number: bool = False) -> None:
        super().__init__()
        self.shade, self.with_number = 204, with_number
        if with_number:
            number = spaces.Box(0, 1, (1,), np.float32)
            self.image_shape = self.observation_space.shape
            self.observation_space = spaces.Dict({"camera": self.observation_space, "number": number})

    def _shown(self) -> Any:
        if not self.with_number:
            return np.full(self.observation_space.shape, self.shade, np.uint8)
        return {"camera": np.full(self.image_shape, self.shade, np.uint8), "number": np.zeros(1, np.float32)}

    def reset(self, **options: Any) -> Any:
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        return self._shown(), 0.0, False, False, {}


@pytest.mark.parametrize("with_number", [False, True])
@pytest.mark.parametrize("method", ["playvirtual", "curl", "otr"])
def test_a_bright_background_is_subtracted_with_a_reason(method: str, with_number: bool) -> None:
    config = build(factories.task_of(Bright), method=method, env_args={"with_number": with_number})
    assert config.agent.background == 0.8  # type: ignore[attr-defined]
    assert config.fitted_to.endswith(", background 0.8")
    assert "less their background's shade, 0.8, stacks of 2" in reasons(config, on_gpu=False)[1]
    shape = (2 + 2 * with_number, 6, 6)
    agent = make_agent(config, shape, spaces.Discrete(2), torch.device("cpu"), 1)
    assert agent.encoder.background == 0.8  # type: ignore[attr-defined]
    assert build(DOT, method=method).agent.background == 0.0  # type: ignore[attr-defined]


def test_a_small_latent_has_room_for_two_things_in_one_image() -> None:
    agents = [build(DOT, size=size).agent for size in ("small", "medium")]
    assert [(a.latent, a.adam_eps, a.updates_per_step) for a in agents] == [(128, 1e-8, 2.0)] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", ["small", "medium"])
def test_few_steps_are_learned_from_by_short_returns_little_noise_and_two_frames(size: str) -> None:
    config = build(DOT, size=size)
    assert isinstance(config.agent, RainbowConfig)
    assert (config.agent.n_step, config.agent.noisy_sigma, config.agent.learning_rate) == (3, 0.1, 5e-4)
    assert config.environment.frame_stack == 2
    paper = build(DOT, size="paper")
    assert (paper.agent.n_step, paper.agent.noisy_sigma, paper.environment.frame_stack) == (10, 0.5, 4)  # type: ignore[attr-defined]
    assert build(DOT, method="curl", size=size).agent.n_step == 20  # type: ignore[attr-defined]


def test_tasks_of_atari_keep_their_stack_at_every_size() -> None:
    assert build_recorded("atari/pong", size="small")["environment"]["frame_stack"] == 4


def test_many_actions_do_not_multiply_the_virtual_trajectories() -> None:
    counts = [build(DOT, env_args={"actions": 99}, size=size).objective.M for size in SIZES]
    assert counts == ["16", "16", "36"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", ["playvirtual", "rl", "curl", "drq", "der", "otr"])
@pytest.mark.parametrize("side", [1, 5, 21, 64])
def test_every_size_fits_every_image(size: str, method: str, side: int) -> None:
    config = build(DOT, method=method, size=size, env_args={"size": side})
    assert config.size == size
    if size != "paper":
        assert config.environment.image_size <= side


def test_a_baseline_keeps_its_own_numbers() -> None:
    for size in ("small", "paper"):
        config = build(DOT, method="otr", size=size)
        assert (config.agent.updates_per_step, config.agent.n_step) == (8.0, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "steps", "decay"),
    [("otr", 100_000, 50_000), ("otr", 4_000, 2_000), ("drq", 50_000, 2_500), ("otr", 300_000, 50_000), ("drq", 9, 1)],
)
def test_random_actions_grow_rarer_in_the_proportions_of_ataris_steps(method: str, steps: int, decay: int) -> None:
    """Half of the steps for OTR, a twentieth for DrQ; the decay of 50,000 steps would outlast a short run."""
    config = build(DOT, method=method, steps=steps, learning_starts=5)
    assert config.agent.epsilon_decay_steps == decay  # type: ignore[attr-defined]
    assert build(DOT, method=method, epsilon_decay_steps=77).agent.epsilon_decay_steps == 77  # type: ignore[attr-defined]


def test_reasons_name_a_range_of_values_where_there_is_one() -> None:
    last = {method: reasons(build(DOT, method=method), on_gpu=False)[-1] for method in ("otr", "drq")}
    assert last["otr"].startswith("values within ±")
    assert last["drq"].startswith("a discount of 0.95: random play earned")
    assert "v-max" not in last["drq"]


@dataclass(frozen=True)
class PatchConfig(AgentConfig):
    """An agent that extends none of the paper's."""

    hidden: int = option("hidden units", low=1, default=7)
    patch: int = option("side of a patch of the image", low=1, default=16)

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        return {"patch": min(self.patch, side // 2)}

    def fit_reasons(self, config: Config, earned: str) -> list[str]:
        return [f"patches of {self.patch}: random play earned {earned}"]


def test_an_agent_of_ones_own_keeps_its_numbers_and_says_itself_what_it_fits() -> None:
    config = replace(build(DOT, size="small"), agent=PatchConfig(batch_size=9, updates_per_step=0.3))
    changes = sized_changes("small", "discrete", 10, config)
    assert changes["patch"] == 5
    assert changes["image_size"] == 10
    assert not changes.keys() & {"hidden", "batch_size", "updates_per_step"}
    assert reasons(config, on_gpu=False)[-1] == "patches of 16: random play earned nothing"


@pytest.mark.parametrize(("side", "pad"), [(8, 2), (64, 4)])
def test_the_views_of_a_contrastive_loss_fit_the_images(side: int, pad: int) -> None:
    agent = build(DOT, method="curl", size="small", env_args={"size": side}).agent
    assert agent.contrast_pad == pad  # type: ignore[attr-defined]


class Steered(Dot):
    """Actions are vectors."""

    def __init__(self, size: int = 6) -> None:
        super().__init__(size)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)


STEERED = factories.task_of(Steered)


@pytest.mark.parametrize("method", ["playvirtual", "rl", "sac-ae", "curl", "drq"])
@pytest.mark.parametrize("size", ["small", "medium"])
def test_an_agent_for_continuous_actions_can_be_made_for_every_image(method: str, size: str) -> None:
    """Images of 36 to 42 pixels are those whose crops are too small for three convolutions."""
    for side in (1, 3, 4, 5, 20, 21, 24, 25, 35, 36, 37, 38, 39, 41, 42, 43, 47, 64):
        config = build(STEERED, method=method, size=size, env_args={"size": side}, device="cpu")
        shape = (3, config.environment.image_size, config.environment.image_size)
        make_agent(config, shape, spaces.Box(-1, 1, (2,), np.float32), torch.device("cpu"), seed=1)


@pytest.mark.parametrize(
    ("method", "crops"),
    [
        ("rl", {8: 8, 20: 20, 48: 44}),
        ("sac-ae", {8: 8, 20: 20, 48: 48}),  # which reconstructs whole images
        ("curl", {8: 7, 20: 17, 48: 40}),  # 84 of 100 on DMControl; views that differ
        ("drq", {8: 8, 20: 20, 48: 48}),  # which shifts them
    ],
)
def test_what_networks_for_continuous_actions_see_of_an_image(method: str, crops: dict[int, int]) -> None:
    fitted = [build(STEERED, method=method, size="medium", env_args={"size": side}) for side in crops]
    assert {c.environment.image_size: c.agent.crop_size for c in fitted} == crops  # type: ignore[attr-defined]
    given = build(STEERED, method=method, size="medium", env_args={"size": 48}, crop_size=48)
    assert given.agent.crop_size == 48  # type: ignore[attr-defined]


@pytest.mark.parametrize(("side", "pad"), [(8, 1), (20, 1), (32, 2), (64, 4)])
def test_shifts_fit_the_images(side: int, pad: int) -> None:
    agent = build(STEERED, method="drq", size="medium", env_args={"size": side}).agent
    assert agent.shift_pad == pad  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "crop"), [("sac-ae", 32), ("curl", 27), ("drq", 32), ("playvirtual", 30)])
def test_a_smaller_size_of_dmcontrol_is_seen_as_the_method_sees_images(method: str, crop: int) -> None:
    config = build("dmc/walker-walk", method=method, size="small")
    assert (config.environment.image_size, config.agent.crop_size) == (32, crop)  # type: ignore[attr-defined]


def test_every_choice_is_an_option() -> None:
    config = build(DOT, K=5, M="7", image_size=9, grayscale=True, capacity=500, batch_size=8, channels="4")
    assert (config.objective.K, config.objective.M, config.environment.image_size) == (5, "7", 9)
    assert (config.replay.capacity, config.agent.batch_size, config.environment.grayscale) == (500, 8, True)


@pytest.mark.parametrize("task", ["atari/pong", "dmc/cheetah-run", "toy/catch", "minatar/breakout"])
def test_tasks_of_the_benchmarks_keep_their_settings(task: str) -> None:
    assert (build_recorded(task)["size"], build_recorded(task)["fitted_to"]) == ("", "")


def build_recorded(task: str, **options: Any) -> dict[str, Any]:
    from playvirtual.config.build import assemble

    return to_dict(assemble(task, "playvirtual", "paper", options))


def test_size_is_for_tasks_with_images() -> None:
    small, paper = (build_recorded("atari/pong", size=size) for size in ("small", "paper"))
    assert (small["environment"]["image_size"], small["environment"]["grayscale"], small["size"]) == (32, True, "small")
    assert paper == build_recorded("atari/pong")
    with pytest.raises(InputError, match="size: 'small' is not allowed; allowed: none, as toy/catch has settings"):
        build("toy/catch", size="small")
    with pytest.raises(InputError, match=r"size: 'tiny' is not known; .*allowed: medium, paper, small"):
        build(DOT, size="tiny")


def test_reports_find_what_a_run_changed_without_its_environment() -> None:
    def changed(**options: Any) -> dict[str, Any]:
        record = to_dict(build(DOT, device="cpu", **options))
        assert from_dict(record) == build(DOT, device="cpu", **options)
        return changes({**record, "task": "env/not_here:Dot"})

    record = to_dict(build(DOT, device="cpu"))
    with pytest.raises(InputError, match="size: '' is not known"):
        changes({**record, "size": ""})
    assert changed() == {}
    assert changed(steps=3_000) == {"steps": 3_000}
    assert changed(K=5, env_args={"size": 12}) == {"K": 5, "env_args": ["size=12"]}
    assert changed(size="medium") == {"size": "medium"}  # and none of the numbers that follow from it
