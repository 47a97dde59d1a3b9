"""Environments of one's own: arguments, modules and trust, factories, images with numbers beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.envs import check, factories, inspect_env, make
from playvirtual.envs.arguments import as_keywords, as_texts
from playvirtual.envs.modules import import_modules
from playvirtual.envs.observations import ObservedParts
from playvirtual.errors import InputError
from playvirtual.runs.folder import RunFolder
from tests.envs.conftest import Settings

SIMPLE = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
JSON = SIMPLE | st.lists(SIMPLE, max_size=2)
NAMES = st.sampled_from(("size", "level", "walls", "seed2"))


@settings(max_examples=30)
@given(st.dictionaries(NAMES, JSON, max_size=3))
def test_arguments_come_back_as_they_were_given(values: dict[str, Any]) -> None:
    texts = as_texts(values)
    assert as_keywords(texts) == values
    assert as_texts(texts) == texts  # canonical: what is recorded once stays as it is


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=12", 12),
        ("a=1e-3", 0.001),
        ("a=true", True),
        ("a=False", False),
        ("a=None", None),
        ("a=easy", "easy"),
        ('a="12"', "12"),
        ("a=[1, 2]", [1, 2]),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=NaN", "NaN"),
    ],
)
def test_a_value_is_json_or_else_text(text: str, value: Any) -> None:
    assert as_keywords([text]) == {"a": value}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("size", "'size' is not allowed; allowed: NAME=VALUE"),
        ("=3", "'=3' is not allowed"),
        ("a b=3", "'a b=3' is not allowed"),
        (["a=1", "a=2"], "'a' is given twice"),
        ({"a": object()}, "cannot be recorded; allowed: values that JSON can hold, or a factory"),
        ({"a": float("nan")}, "a=nan cannot be recorded"),
        (7, "7 is not allowed"),
    ],
)
def test_wrong_arguments_end_in_one_line(wrong: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"^env_args: ") as caught:
        as_texts(wrong)
    assert said in str(caught.value)


class Dot(gymnasium.Env[Any, Any]):
    """A gray image of one shade, as many actions as it is told."""

    def __init__(self, size: int = 6, actions: int = 2) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = spaces.Discrete(actions)
        self.shade = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(self.observation_space.shape, self.shade, np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.full(self.observation_space.shape, self.shade, np.uint8), 0.0, False, False, {}


class Rendered(Dot):
    """Shows a vector, and an image only if it is asked to."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (3,))
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.zeros((9, 7, 3), np.uint8)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder that leaves a trace when it is executed."""
    source = "from tests.envs.test_own_environments import Dot\nopen('executed', 'w').close()\nNUMBER = 3\n"
    (tmp_path / "playvirtual_own_module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as a console script has it
    yield "playvirtual_own_module"
    sys.modules.pop("playvirtual_own_module", None)


def test_the_current_folder_is_looked_at_for_a_module_that_is_not_installed(module: str) -> None:
    before = list(sys.path)
    import_modules(["json"])
    assert sys.path == before
    import_modules([module])
    assert sys.path == [*before, str(Path.cwd())]  # last: it hides nothing that is installed


def test_the_task_names_a_class_of_a_module(module: str) -> None:
    info = inspect_env(f"env/{module}:Dot", ("actions=5", "size=9"))
    assert info == inspect_env(f"env/{module}:Dot", ("actions=5", "size=9"))
    assert info.num_actions == 5
    assert build(f"env/{module}:Dot", env_args={"size": 9}).environment.env_args == ("size=9",)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("env/{}.Dot", "did you mean 'env/{}:Dot'?"),
        ("env/{}.py:Dot", "names a file and not a module; did you mean 'env/{}:Dot'?"),
        ("gym/{}.py:Dot-v0", "names a file and not a module; did you mean 'gym/{}:Dot-v0'?"),
        ("{}:Dot", "has no family; did you mean 'env/{}:Dot'?"),
        ("env/{}:Dott", "has no 'Dott'; its environments: Dot"),
        ("env/{}:NUMBER", "is 3; allowed: a function or class"),
        ("env/{}_no:Dot", "cannot import the module '{}_no': there is no such module; allowed: an installed module"),
        ("env/maze", "handed over in Python: the same there, as in pv.evaluate(RUN, env=factory)"),
        ("gym/Dot-v0", "gym/MODULE:Dot-v0 or --import MODULE"),
        ("gym/{0}:Dot-v0", "'{0}' registers none of its own; allowed: an id that it registers, or env/{0}:CLASS"),
    ],
)
def test_a_wrong_name_gets_one_line_that_says_what_to_do(task: str, said: str, module: str) -> None:
    with pytest.raises(InputError) as caught:
        check(task.format(module))
    assert said.format(module) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_id_suggests_only_what_is_similar() -> None:
    with pytest.raises(InputError) as caught:
        check("gym/Tiny-v0")
    assert "did you mean" not in str(caught.value)
    with pytest.raises(InputError, match="did you mean 'gym/CartPole-v1'"):
        check("gym/Cartpole-v7")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./my_envs.py", "did you mean 'my_envs'?"),
        ("my-envs", "'my-envs' is no module"),
        ("no_such_module_at_all", "there is no such module"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(name: str, said: str) -> None:
    with pytest.raises(InputError, match=r"^imports: ") as caught:
        import_modules([name])
    assert said in str(caught.value)


def test_modules_of_a_run_folder_are_imported_by_the_users_word_alone(module: str, tmp_path: Path) -> None:
    config = build("toy/catch")
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(config)
    record = json.loads((folder.path / "config.json").read_text())
    for forged in ([["a"]], [7], ["a b"]):
        (folder.path / "config.json").write_text(json.dumps({**record, "imports": forged}))
        with pytest.raises(InputError, match=r"^imports: .* is no module"):
            folder.trusted_config(trust_env=True)
    (folder.path / "config.json").write_text(json.dumps({**record, "imports": [module]}))
    with pytest.raises(InputError, match=rf"names '{module}', so the module .* --trust-env"):
        folder.trusted_config(trust_env=False)
    assert not Path("executed").exists()
    assert folder.trusted_config(trust_env=True).imports == (module,)
    assert Path("executed").exists()
    folder.trusted_config(trust_env=False)  # nothing would be executed again


def test_a_factory_that_can_be_imported_is_recorded_and_others_have_names_of_their_own() -> None:
    assert factories.task_of(Dot) == f"env/{__name__}:Dot"
    first, second = (lambda: Dot(3)), (lambda: Dot(4))
    names = [factories.task_of(factory) for factory in (first, second, first)]
    assert names[0] == names[2] != names[1]
    assert [inspect_env(name).shape for name in names[:2]] == [(1, 3, 3), (1, 4, 4)]
    for factory, size in ((first, 3), (second, 4)):
        factories.hand_over("env/my-maze", factory)
        assert inspect_env("env/my-maze").shape == (1, size, size)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env": Dot()}, "env: an environment, Dot, is given; allowed: what makes one"),
        ({"env": "gym/CartPole-v1"}, "env: 'gym/CartPole-v1' is not allowed"),
        ({"env": lambda: 3}, "made 3; allowed: a function or class that makes a gymnasium.Env"),
        ({"env": Dot, "task": "atari/pong"}, "'atari/pong' is not made by a function"),
        ({"task": Dot}, "what makes an environment of your own is given as env="),
        ({}, "task: none is given; allowed: a name such as 'toy/catch', or env="),
        ({"task": "toy/catch", "env_args": {"size": 3}}, "env_args: size=3 is not allowed, as toy/… takes none"),
        ({"env": Dot, "env_args": {"sise": 3}}, "unexpected keyword argument 'sise'"),
    ],
)
def test_mistakes_with_a_factory_end_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        pv.train(**options, quiet=True)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_factory_without_images_is_asked_to_render() -> None:
    assert inspect_env(factories.task_of(Rendered)).shape == (3, 9, 7)
    with pytest.raises(InputError, match="shows no pixels"):
        inspect_env(factories.task_of(lambda: Rendered()))


IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)


class Robot(Dot):
    """An image of one shade beside a bounded number and an unbounded one."""

    def __init__(self, **others: spaces.Space[Any]) -> None:
        super().__init__()
        vector = spaces.Box(np.array([0, -np.inf]), np.array([10, np.inf]), dtype=np.float64)
        self.observation_space = spaces.Dict({"camera": IMAGE, "arm": vector, **others})
        self.arm = np.array([5.0, -3.0])

    def _look(self) -> Any:
        return {"camera": np.full(IMAGE.shape, 7, np.uint8), "arm": self.arm}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), 0.0, False, False, {}


def test_numbers_beside_an_image_are_planes_of_one_shade(settings: Settings) -> None:
    env = make(factories.task_of(Robot), 1, training=True, config=settings(image_size=4, grayscale=True))
    assert env.frame_shape == (3, 4, 4)
    frame = env.reset([0], [0])[0]
    assert [np.unique(plane).tolist() for plane in frame] == [[7], [128], [round(255 * (1 - 3 / 4) / 2)]]
    assert env.render(0).shape[2] == 3
    fitted = build(factories.task_of(Robot))
    assert fitted.agent.intensity_scale == 0  # type: ignore[attr-defined]
    assert "2 numbers" in fitted.fitted_to


@settings(max_examples=30)
@given(st.floats(-5, 15), st.floats(-5, 15))
def test_a_larger_number_is_never_darker(a: float, b: float) -> None:
    parts = ObservedParts("robot", Robot().observation_space)
    low, high = (parts.planes({"arm": [x, x]}, 1)[:, 0, 0] for x in sorted((a, b)))
    assert (low <= high).all()


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"wrist": IMAGE}, "FilterObservation(env, ['camera']) keeps it"),
        ({"goal": spaces.Discrete(3)}, "have 'goal', Discrete(3); allowed: a Dict of one image and vectors"),
        ({"map": spaces.Box(0, 1, (3, 3))}, "have 'map'"),
        ({"many": spaces.Box(0, 1, (99,))}, "have 101 numbers beside the image; allowed: 64"),
    ],
)
def test_other_dicts_are_refused_in_one_line(others: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        inspect_env(factories.task_of(lambda: Robot(**others)))
    assert said in str(caught.value)


@pytest.mark.parametrize("arm", [[1.0], [np.nan, 0.0], [[1.0, 2.0]]])
def test_numbers_of_another_shape_or_none_end_the_run_in_one_line(arm: Any, settings: Settings) -> None:
    robot = Robot()
    env = make(factories.task_of(lambda: robot), 1, training=True, config=settings(image_size=4))
    robot.arm = np.array(arm)
    with pytest.raises(pv.RunError, match=r"'arm' of an observation .* allowed: finite numbers of shape \(2,\)"):
        env.reset([0], [0])


def test_several_actions_at_once_are_refused_with_what_to_do() -> None:
    def several() -> Dot:
        env = Dot()
        env.action_space = spaces.MultiDiscrete([2, 3])  # type: ignore[assignment]
        return env

    with pytest.raises(InputError, match=r"MultiDiscrete\(\[2 3\]\); allowed: Discrete, .*TransformAction"):
        inspect_env(factories.task_of(several))


def leave() -> gymnasium.Env[Any, Any]:
    sys.exit(0)


def test_a_factory_that_ends_the_process_is_one_line() -> None:
    """`playvirtual train` ended without a word and with exit code 0, as after a run."""
    with pytest.raises(InputError, match=r"^task: 'env/.*:leave' cannot be made: SystemExit: 0$"):
        build(factories.task_of(leave))
