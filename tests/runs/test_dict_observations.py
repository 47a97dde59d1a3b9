"""Agents that have learned from a Dict of an image and vectors, outside of training: the environment's dict in."""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import playvirtual as pv
from playvirtual.envs import factories
from playvirtual.runs.agents import read_observed_parts
from playvirtual.runs.checkpoint import write_new_folder
from playvirtual.runs.portable import FORMATS, example_parts, outputs, portable_policy
from playvirtual.training.evaluation import WatchedStep, evaluation_seeds
from tests.runs.untrained_export import write_export

SMALL = {"channels": "4", "kernel_sizes": "3", "strides": "2", "hidden": 256, "eval_epsilon": 0}
SMALL_SAC = {"channels": "4", "kernel_sizes": "3", "strides": "2", "hidden": 16, "latent": 8, "crop_size": 10}
LENGTH, SEED = 60, evaluation_seeds(5, 0, 1)[0]


class Rover(gymnasium.Env[Any, Any]):
    """A camera in color, a place with bounds and a speed without; what it shows depends on all actions so far."""

    action_space: spaces.Space[Any] = spaces.Discrete(3, start=2)  # type: ignore[assignment]

    def __init__(self) -> None:
        parts = {
            "speed": spaces.Box(-np.inf, np.inf, (), np.float64),
            "camera": spaces.Box(0, 200, (20, 24, 3), np.uint8),
            "place": spaces.Box(np.array([0, -5], np.float32), np.array([10, 5], np.float32)),
        }
        self.observation_space = spaces.Dict(OrderedDict(parts))

    def _look(self) -> Any:
        shade = np.random.default_rng([self.time, int(abs(1000 * self.total))])
        place = shade.uniform(-6, 11, 2).astype(np.float32)  # sometimes beyond its bounds
        return {"camera": shade.integers(200, size=(20, 24, 3), dtype=np.uint8), "place": place, "speed": self.total}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.total = 0, float(self.np_random.normal())
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.time, self.total = self.time + 1, self.total * 0.9 + float(np.sum(action)) - 3
        return self._look(), self.total, False, self.time >= LENGTH, {}


class Steered(Rover):
    action_space = spaces.Box(2, 4, (2,), np.float32)


KINDS = {"discrete": (Rover, SMALL), "continuous": (Steered, SMALL_SAC)}


def rover_export(path: Path, kind: str = "discrete", **options: Any) -> Path:
    env, small = KINDS[kind]
    given = {"image_size": 12, "frame_stack": 3, "action_repeat": 2, "grayscale": True, "eval_envs": 1, "seed": 5}
    return write_export(path, factories.task_of(env), **{**small, **given, **options})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rover_export(tmp_path_factory.mktemp("rover") / "agent")


def first() -> Any:
    """What the environment shows first."""
    return Rover().reset(seed=0)[0]


@pytest.mark.parametrize("options", [{}, {"grayscale": False, "stack_fill": "repeat"}], ids=["gray", "color"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_actions_and_observations_are_those_of_the_projects_own_evaluation(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    export = rover_export(tmp_path / "agent", kind, **options)
    observed: list[WatchedStep] = []
    (score,) = pv.evaluate(export, episodes=1, device="cpu", watcher=observed.append, env=KINDS[kind][0])
    agent = pv.load(export, "cpu")
    policy, env = agent.as_gym_policy(), KINDS[kind][0]()
    seen, total, done, taken = env.reset(seed=SEED)[0], 0.0, False, []
    while not done:
        action = policy(seen)
        taken.append(action)
        if len(taken) % 2:
            np.testing.assert_array_equal(agent._stack.observations[0], observed[len(taken) // 2].observation)
        seen, reward, _, done, _ = env.step(action)
        total += float(reward)
    assert total == pytest.approx(score, rel=1e-6)
    if kind == "discrete":
        assert taken[::2] == taken[1::2] == [step.action + 2 for step in observed]
        assert options or len(set(taken)) > 1  # these weights find all pictures in color alike
    assert len(observed) == LENGTH // 2


def test_a_trained_run_records_what_its_agent_takes(tmp_path: Path) -> None:
    run = pv.train(
        env=Rover, size="small", run_dir=tmp_path / "run", steps=30, learning_starts=25, eval_episodes=1, quiet=True,
        device="cpu", image_size=12,
    )  # fmt: skip
    env, agent = Rover(), pv.load(run, "cpu")
    assert agent.act(env.reset(seed=1)[0]) in range(2, 5)
    assert agent.frame_shape == (6, 12, 12)


def test_several_environments_as_a_list_of_dicts_or_as_a_dict_of_arrays(exported: Path) -> None:
    one, two = (Rover().reset(seed=seed)[0] for seed in (1, 2))
    alone = [pv.load(exported, "cpu").act(seen) for seen in (one, two)]
    together = {name: np.stack([one[name], two[name]]) for name in one}
    for seen in ([one, two], together):
        assert pv.load(exported, "cpu", num_envs=2).act(seen).tolist() == alone
        assert pv.load(exported, "cpu", num_envs=2).as_gym_policy()(seen).tolist() == alone
    agent = pv.load(exported, "cpu", num_envs=2)
    with pytest.raises(pv.InputError, match="observation: of 'place' 1 are given; allowed: 2"):
        agent.act(together | {"place": one["place"][None]})
    with pytest.raises(pv.InputError, match="observation: of 'speed' 0 are given; allowed: 2"):
        agent.act(together | {"speed": 0.5})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"camera": None}, "'camera' is missing in a dict of place, speed; allowed: a dict of camera, speed, place"),
        ({"place": None}, "'place' is missing in a dict of camera, speed; allowed: a dict of camera, speed, place"),
        ({"camera": np.zeros((20, 24, 3), np.float32)}, "'camera' is float32 of shape (20, 24, 3); allowed: uint8 of"),
        ({"camera": np.zeros((20, 24), np.uint8)}, "'camera' has shape (20, 24); allowed: (20, 24, 3)"),
        ({"camera": np.full((20, 24, 3), 201, np.uint8)}, "'camera' has the value 201; allowed: 0 to 200"),
        ({"place": np.zeros(3)}, "'place' is float64 of shape (3,); allowed: finite numbers of shape (2,)"),
        ({"place": [0.0, np.nan]}, "'place' is [0.0, nan]; allowed: finite numbers of shape (2,)"),
        ({"place": ["0", "1"]}, "'place' is <U1 of shape (2,); allowed: finite numbers of shape (2,)"),
        ({"place": [[0.0], [1.0, 2.0]]}, "'place' is no array; allowed: finite numbers of shape (2,)"),
        ({"speed": np.zeros(1)}, "'speed' is float64 of shape (1,); allowed: finite numbers of shape ()"),
    ],
)
def test_a_wrong_part_is_one_line_that_names_it(change: dict[str, Any], said: str, exported: Path) -> None:
    seen = {name: value for name, value in {**first(), **change}.items() if value is not None}
    agent = pv.load(exported, "cpu")
    for act in (agent.act, agent.as_gym_policy()):
        with pytest.raises(pv.InputError) as error:
            act(seen)
        assert str(error.value).startswith(f"observation: {said}")
        assert len(str(error.value).splitlines()) == 1


def test_what_is_no_dict_must_be_a_frame(exported: Path) -> None:
    agent = pv.load(exported, "cpu")
    parts = read_observed_parts(exported)
    assert parts is not None
    frame = parts.frame(first(), agent.frame_shape)
    action = agent.act(first())
    agent.reset()
    assert agent.act(frame) == action
    for wrong in (first()["camera"], first()["place"], 7):
        with pytest.raises(pv.InputError, match=r"^observation: \w+ of shape .* allowed: a dict of camera, speed, "):
            agent.act(wrong)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("actions", KINDS)
def test_the_acting_network_as_a_file_takes_the_image_and_the_numbers(actions: str, kind: str, tmp_path: Path) -> None:
    export = rover_export(tmp_path / "agent", actions)
    agent, parts = pv.load(export, "cpu").unwrapped, read_observed_parts(export)
    assert parts is not None
    _, content = portable_policy(agent, kind, parts, 3)
    for count in (1, 5):
        inputs = example_parts(agent, parts, 3, count, seed=count)
        if kind == "torchscript":
            found = [each.numpy() for each in outputs(torch.jit.load(io.BytesIO(content))(**inputs))]
        else:
            pytest.importorskip("onnx")
            session = pytest.importorskip("onnxruntime").InferenceSession(content)
            found = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        images, numbers = inputs["image"].numpy(), inputs["numbers"].numpy()
        stacks = np.zeros((count, 3, 4, 12, 12), np.uint8)  # by the project's own planes
        for n, depth in np.ndindex(count, 3):
            stacks[n, depth, :1] = images[n, depth]
            if depth:  # the oldest frame is missing
                speed, *place = numbers[n, depth]
                stacks[n, depth, 1:] = parts.planes({"speed": speed, "place": place}, 12)
        wanted = agent.act(torch.from_numpy(stacks.reshape(count, 12, 12, 12))).numpy()
        np.testing.assert_allclose(found[0], wanted, atol=1e-5)


def test_an_export_has_the_file_beside_what_load_takes(exported: Path, tmp_path: Path) -> None:
    out = pv.export(exported, tmp_path / "out", format="torchscript")
    agent = pv.load(out, "cpu")
    action = agent.act(first())
    camera = torch.from_numpy(agent._stack.observations.reshape(1, 3, 4, 12, 12)[:, :, 0].copy())
    numbers = torch.full((1, 3, 3), torch.nan, dtype=torch.float64)
    numbers[0, 2] = torch.tensor([first()["speed"], *first()["place"]])
    assert int(torch.jit.load(out / "policy.pt")(camera, numbers)[0]) + 2 == action


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], "it is not a record"),
        ({"shape": [20, 24, 3, 1]}, "shape: "),
        ({"shape": [20, 24.5, 3]}, "allowed: whole sizes"),
        ({"high": 256}, "high: 256 is not allowed"),
        ({"image": 3}, "name: 3 is not allowed; allowed: text"),
        ({"vectors": {}}, "allowed: a list of records"),
        ({"vectors": [{"name": "camera", "shape": [1], "low": [0], "high": [1]}]}, "each name once"),
        ({"vectors": [{"name": "a", "shape": [65], "low": [0] * 65, "high": [1] * 65}]}, "allowed: 64 numbers"),
        ({"vectors": [{"name": "a", "shape": [2], "low": [0], "high": [1, 1]}]}, "a list of 2 numbers or null"),
        ({"vectors": [{"name": "a", "shape": [1], "low": ["0"], "high": [1]}]}, "low: '0' is not allowed"),
        ({"vectors": [{"name": "a", "shape": [1], "low": [2], "high": [1]}]}, "low"),
    ],
)
def test_forged_parts_are_one_line(change: Any, message: str, exported: Path, tmp_path: Path) -> None:
    record = json.loads((exported / "agent.json").read_text())
    record["observed_parts"] = record["observed_parts"] | change if isinstance(change, dict) else change
    contents = {name: (exported / name).read_bytes() for name in ("config.json", "weights.safetensors")}
    write_new_folder(tmp_path / "forged", [*contents.items(), ("agent.json", json.dumps(record).encode())])
    with pytest.raises(pv.InputError, match=message) as error:
        pv.load(tmp_path / "forged", "cpu")
    assert len(str(error.value).splitlines()) == 1


def test_parts_that_do_not_make_the_agents_frames_are_one_line(exported: Path, tmp_path: Path) -> None:
    record = json.loads((exported / "agent.json").read_text())
    record["observed_parts"]["vectors"].pop(0)
    contents = {name: (exported / name).read_bytes() for name in ("config.json", "weights.safetensors")}
    write_new_folder(tmp_path / "forged", [*contents.items(), ("agent.json", json.dumps(record).encode())])
    with pytest.raises(pv.InputError, match=r"agent: its frames of shape \(4, 12, 12\) are not made of camera, place"):
        pv.load(tmp_path / "forged", "cpu").act(first())
