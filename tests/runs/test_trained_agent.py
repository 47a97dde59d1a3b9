"""An agent outside of training takes the actions of the project's own evaluation on the same episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import playvirtual as pv
from playvirtual import envs
from playvirtual.envs.image import resize_area
from playvirtual.runs.checkpoint import write_new_folder
from playvirtual.training.evaluation import WatchedStep, evaluation_seeds
from tests.runs.untrained_export import write_export

SMALL_RAINBOW: dict[str, Any] = {"channels": "4", "kernel_sizes": "8", "strides": "6", "hidden": 16, "eval_epsilon": 0}
SMALL_SAC: dict[str, Any] = {"channels": "4", "kernel_sizes": "3", "strides": "2", "hidden": 16, "latent": 8}
FRAMES = 60  # of an episode
ONE_EPISODE: dict[str, Any] = {"max_episode_frames": FRAMES, "eval_envs": 1, "seed": 5}
SEED = evaluation_seeds(5, 0, 1)[0]


def own_evaluation(export: Path) -> tuple[list[Any], float]:
    """The actions, in the agent's own space, and the return of the project's own evaluation."""
    actions: list[Any] = []
    (result,) = pv.evaluate(export, episodes=1, device="cpu", watcher=lambda step: actions.append(step.action.tolist()))
    return actions, result


def test_toys_take_the_frames_of_the_projects_own_environments(tmp_path: Path) -> None:
    for task, options in (("toy/catch", {"eval_epsilon": 0, "frame_stack": 2}), ("toy/reach", {"frame_stack": 3})):
        export = write_export(tmp_path / task, task, **ONE_EPISODE, **options)
        observed: list[WatchedStep] = []
        pv.evaluate(export, episodes=1, device="cpu", watcher=observed.append)
        agent = pv.load(export, "cpu")
        config = pv.build(task, **options).environment
        env = envs.make(task, 1, training=False, config=config)
        frames = env.reset([0], [SEED])
        for step in observed:
            action = agent.act(frames[0])
            np.testing.assert_array_equal(action, step.action)
            frames = env.step(np.asarray([action])).frames
        assert len(observed) > 5


@pytest.mark.parametrize("method", ["drq", "otr"])
def test_exploring_takes_the_random_actions_of_the_step_at_which_training_ended(method: str, tmp_path: Path) -> None:
    """ε has fallen from 1 to 0.1 by step 70: of three actions a random one is another than the greedy one in 2 of 3."""
    tiny: dict[str, Any] = {"hidden": 8, "learning_starts": 20, "batch_size": 4, "updates_per_step": 0.5}
    run = pv.train(
        "toy/catch",
        run_dir=tmp_path / "run",
        method=method,
        steps=100,
        epsilon_end=0.1,
        epsilon_decay_steps=50,
        eval_every=0,
        eval_episodes=1,
        device="cpu",
        quiet=True,
        **tiny,
    )
    for source in (run.path, pv.export(run, tmp_path / "agent")):
        agent = pv.load(source, "cpu", num_envs=3_000)
        observations = np.zeros((3_000, 1, 10, 10), np.uint8)
        greedy, explored = agent.act(observations), agent.act(observations, explore=True)
        assert 0.04 < float((greedy != explored).mean()) < 0.1  # 0.067


@pytest.mark.parametrize("game", ["breakout", "seaquest"])
def test_states_of_minatar_give_the_actions_of_the_evaluation(game: str, tmp_path: Path) -> None:
    """Seaquest has ten channels of 10 × 10: only the type tells its states from frames."""
    minatar = pytest.importorskip("minatar")
    export = write_export(tmp_path / "agent", f"minatar/{game}", eval_epsilon=0, **ONE_EPISODE)
    wanted, _ = own_evaluation(export)
    simulator = minatar.Environment(game)
    simulator.seed(0)
    simulator.random.seed(SEED)
    simulator.reset()
    policy = pv.load(export, "cpu").as_gym_policy()
    found = []
    for _ in wanted:
        found.append(policy(simulator.state()))
        simulator.act(simulator.minimal_action_set()[found[-1]])
    assert found == wanted


def ale_screens(game: str, seed: int, gray: bool) -> Iterator[Any]:
    """A plain ALE after the no-ops of the project's own environment: sends actions, yields every screen."""
    from ale_py import ALEInterface, roms
    from ale_py.vector_env import AtariVectorEnv

    counter = AtariVectorEnv(game, 1, num_threads=1, noop_max=31, use_fire_reset=False)
    _, info = counter.reset(seed=np.array([seed], np.int64))
    counter.close()
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    for _ in range(int(info["episode_frame_number"][0])):
        ale.act(0)
    while True:
        action = yield ale.getScreenGrayscale() if gray else ale.getScreenRGB()
        ale.act(ale.getMinimalActionSet()[action])


@pytest.mark.parametrize(("game", "gray"), [("pong", False), ("space_invaders", True)])
def test_atari_frame_by_frame_on_a_plain_emulator(game: str, gray: bool, tmp_path: Path) -> None:
    """Raw screens of every frame; the policy repeats its actions and merges the last two screens as the emulator."""
    options = SMALL_RAINBOW | ONE_EPISODE | {"max_episode_frames": 240}
    export = write_export(tmp_path / "agent", f"atari/{game}", method="rl", **options)
    observed: list[WatchedStep] = []
    pv.evaluate(export, episodes=1, device="cpu", watcher=observed.append)
    screens = ale_screens(game, SEED, gray)
    agent = pv.load(export, "cpu")
    policy = agent.as_gym_policy()
    screen = next(screens)
    for step in observed:
        for _ in range(4):
            action = policy(screen)
            screen = screens.send(action)
            assert action == step.action
        np.testing.assert_array_equal(agent._stack.observations[0], step.observation)
    assert len(observed) > 50  # of 240 frames, no-ops included


def test_dmcontrol_with_the_suites_own_environment(tmp_path: Path) -> None:
    pytest.importorskip("dm_control")
    options = SMALL_SAC | {"image_size": 32, "crop_size": 28}
    export = write_export(tmp_path / "agent", "dmc/cartpole-swingup", **options, **ONE_EPISODE)
    wanted, score = own_evaluation(export)
    from dm_control import suite  # not before the project has chosen the OpenGL back end

    env = suite.load("cartpole", "swingup", task_kwargs={"random": np.random.RandomState(0)})
    env.physics.model.vis.global_.offwidth = env.physics.model.vis.global_.offheight = 32
    env.task.random.seed(SEED)
    env.reset()
    policy = pv.load(export, "cpu").as_gym_policy()
    total = 0.0
    for _ in range(FRAMES):
        total += env.step(policy(env.physics.render(32, 32, camera_id=0))).reward
    assert total == pytest.approx(score, abs=1e-5)
    assert len(wanted) == -(-FRAMES // 8)


@pytest.mark.parametrize(
    ("task", "package", "screen"),
    [
        ("minatar/breakout", "minatar", np.zeros((10, 10, 4), bool)),
        ("atari/pong", "ale_py", np.zeros((210, 160, 3), np.uint8)),
    ],
)
def test_the_simulator_need_not_be_installed(
    task: str, package: str, screen: npt.NDArray[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SMALL_RAINBOW | {"method": "rl"} if package == "ale_py" else {}
    export = write_export(tmp_path / "agent", task, **options)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    assert pv.load(export, "cpu").act(screen) in range(6)


def test_gymnasium_environments_get_actions_of_their_own_space(tmp_path: Path) -> None:
    """Pendulum's torque lies between −2 and 2; what it draws is reduced to 32 × 32."""
    options = SMALL_SAC | {"image_size": 32, "crop_size": 28, "action_repeat": 2}
    export = write_export(tmp_path / "agent", "gym/Pendulum-v1", **options, **ONE_EPISODE)
    _, score = own_evaluation(export)
    agent = pv.load(export, "cpu")
    policy = agent.as_gym_policy()
    env = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
    assert agent.action_space == env.action_space
    env.reset(seed=SEED)
    total = 0.0
    for _ in range(FRAMES):
        action = policy(env.render())
        assert env.action_space.contains(action)
        total += float(env.step(action)[1])
    assert total == pytest.approx(score, rel=1e-6)


def test_a_batch_of_envs_acts_as_each_alone(tmp_path: Path) -> None:
    """Environments that begin new episodes at different times, and repeat actions, do not disturb each other."""
    export = write_export(tmp_path / "agent", "toy/reach", frame_stack=2, action_repeat=3)
    frames = np.random.default_rng(0).integers(256, size=(12, 2, 3, 12, 12), dtype=np.uint8)
    together = pv.load(export, "cpu", num_envs=2).as_gym_policy()
    alone = [pv.load(export, "cpu").as_gym_policy() for _ in range(2)]
    for number, pair in enumerate(frames):
        together.reset([])  # no episode has ended
        if number == 4:
            together.reset([False, True])
            alone[1].reset()
        found = together(pair)
        for index in range(2):
            np.testing.assert_allclose(found[index], alone[index](pair[index]), atol=1e-6)
    assert together(frames[0]).shape == (2, 2)


def test_a_reset_forgets_the_episode(tmp_path: Path) -> None:
    agent = pv.load(write_export(tmp_path / "agent", "toy/reach", frame_stack=3), "cpu")
    first, other = np.random.default_rng(1).integers(256, size=(2, 3, 12, 12), dtype=np.uint8)
    fresh = agent.act(first)
    agent.act(other)
    assert not np.array_equal(agent.act(first), fresh)
    agent.reset()
    np.testing.assert_array_equal(agent.act(first), fresh)


def test_a_new_episode_begins_with_a_new_decision(tmp_path: Path) -> None:
    """Also in the middle of a repeated action."""
    export = write_export(tmp_path / "agent", "toy/reach", action_repeat=3)
    frames = np.random.default_rng(2).integers(256, size=(3, 3, 12, 12), dtype=np.uint8)
    policy, fresh = pv.load(export, "cpu").as_gym_policy(), pv.load(export, "cpu").as_gym_policy()
    first = policy(frames[0])
    np.testing.assert_array_equal(policy(frames[1]), first)
    policy.reset()
    np.testing.assert_array_equal(policy(frames[2]), fresh(frames[2]))
    assert not np.array_equal(policy(frames[1]), first)


def test_exploring_draws_new_noise_for_every_action(tmp_path: Path) -> None:
    export = write_export(tmp_path / "agent", "toy/catch", noisy_sigma=5)
    agent = pv.load(export, "cpu")
    frame = np.zeros((10, 10), np.uint8)
    assert len({agent.act(frame) for _ in range(30)}) == 1
    assert len({agent.act(frame, explore=True) for _ in range(60)}) == 3


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        (np.zeros((10, 10), np.float32), "float32 of shape (10, 10)"),
        (np.zeros((4, 10, 10), np.uint8), "uint8 of shape (4, 10, 10)"),
        (np.zeros(7, np.uint8), "uint8 of shape (7,)"),
        ({"image": 1}, "int64 of shape ()"),  # of a dict with one entry that entry
        ([[1, 2], [3]], "[[1, 2], [3]]"),
    ],
)
def test_an_observation_of_another_kind_is_one_line(observation: Any, found: str, tmp_path: Path) -> None:
    agent = pv.load(write_export(tmp_path / "agent", "toy/catch"), "cpu")
    with pytest.raises(pv.InputError) as error:
        agent.act(observation)
    allowed = "allowed: uint8 of shape (H, W), (H, W, 1), (H, W, 3), or (1, 10, 10)"
    assert str(error.value) == f"observation: {found} is not allowed; {allowed}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"native_actions": []}, "it is not a record"),
        ({"native_actions": {"low": [-1], "high": [1], "shape": [1], "dtype": "float32"}}, "bounds of every action"),
        (
            {"native_actions": {"low": [1, 1], "high": [0, 0], "shape": [2], "dtype": "float32"}},
            "bounds of every action",
        ),
        ({"native_actions": {"low": [0, 0], "high": [1, 1], "shape": [2], "dtype": "O"}}, "bounds of every action"),
        ({"native_actions": {"low": [0, 0], "high": [1e6, 1], "shape": [2], "dtype": "float16"}}, "within float16"),
        (
            {"native_actions": {"low": [0, 0], "high": [1, 1], "shape": [-1, -2], "dtype": "float32"}},
            "bounds of every action",
        ),
    ],
)
def test_a_forged_action_space_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    export = write_export(tmp_path / "agent", "toy/reach")
    record = json.loads((export / "agent.json").read_text()) | change
    contents = {name: (export / name).read_bytes() for name in ("config.json", "weights.safetensors")}
    write_new_folder(tmp_path / "forged", [*contents.items(), ("agent.json", json.dumps(record).encode())])
    with pytest.raises(pv.InputError, match=message) as error:
        pv.load(tmp_path / "forged", "cpu")
    assert len(str(error.value).splitlines()) == 1


def test_wrong_numbers_of_environments_are_one_line(tmp_path: Path) -> None:
    export = write_export(tmp_path / "agent", "toy/catch")
    with pytest.raises(pv.InputError, match="num_envs: 0 is not allowed"):
        pv.load(export, num_envs=0)
    agent = pv.load(export, "cpu", num_envs=3)
    with pytest.raises(pv.InputError, match="observation: 2 are given; allowed: 3"):
        agent.act(np.zeros((2, 10, 10), np.uint8))
    with pytest.raises(pv.InputError, match="action_repeat: 0 is not allowed"):
        agent.as_gym_policy(action_repeat=0)


def test_numbers_may_be_text_as_those_of_options_may(tmp_path: Path) -> None:
    agent = pv.load(write_export(tmp_path / "agent", "toy/catch"), "cpu", num_envs="2")  # type: ignore[arg-type]
    policy = agent.as_gym_policy(action_repeat="3")  # type: ignore[arg-type]
    assert policy(np.zeros((2, 10, 10), np.uint8)).shape == (2,)


def test_the_emulators_order_of_sums_is_still_the_mean_over_the_area() -> None:
    image = np.random.default_rng(2).integers(256, size=(4, 4, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_area(np.kron(image, np.ones((3, 3, 1), np.uint8)), 4), image)
    row = np.array([0, 60, 120, 180, 240], np.uint8)  # 5 pixels to 2: each takes two and a half
    wanted = [round((0 + 60 + 120 / 2) / 2.5), round((120 / 2 + 180 + 240) / 2.5)]
    resized = resize_area(np.broadcast_to(row[None, :, None], (5, 5, 1)), 2)
    assert resized[..., 0].tolist() == [wanted, wanted]


def test_an_agent_of_images_refuses_a_dict_with_more_in_one_line(tmp_path: Path) -> None:
    export = write_export(tmp_path / "agent", "toy/catch")
    agent = pv.load(export, "cpu")
    image = np.zeros(agent.frame_shape[1:], np.uint8)
    seen = {"camera": image, "place": np.zeros(2)}
    for act in (agent.act, agent.as_gym_policy()):
        with pytest.raises(pv.InputError, match="observation: a dict of camera, place is not allowed, as this agent"):
            act(seen)
    agent.reset()
    assert agent.act({"camera": image}) in range(3)


def test_it_is_shown_with_what_it_takes_to_use_it(tmp_path: Path) -> None:
    export = write_export(tmp_path / "agent", "toy/catch")
    assert repr(pv.load(export, "cpu")) == "TrainedAgent(Rainbow, action_space=Discrete(3), device='cpu')"
    assert repr(pv.load(export, "cpu", num_envs=2)).endswith("device='cpu', num_envs=2)")
