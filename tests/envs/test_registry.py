"""Names of tasks, and families that are registered from outside."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from playvirtual.envs import action_kind, check, env_family, family, make, register_env, registry, task_names
from playvirtual.envs.families.atari import ATARI_100K
from playvirtual.envs.vector import EnvStep
from playvirtual.errors import InputError


def test_the_26_games_come_first_then_the_rest():
    names = task_names()
    assert names[:26] == [f"atari/{game}" for game in ATARI_100K]
    assert len(names) == len(set(names))
    assert sum(name.startswith("atari/") for name in names) == 104
    assert sum(name.startswith("dmc/") for name in names) == 51
    assert {"dmc/ball_in_cup-catch", "minatar/space_invaders", "toy/catch", "toy/reach"} <= set(names)


@pytest.mark.parametrize(
    ("task", "kind"),
    [("atari/pong", "atari"), ("dmc/cheetah-run", "dmc"), ("toy/catch", "toy"), ("gym/ALE/Pong-v5", "gym")],
)
def test_family_is_what_stands_before_the_first_slash(task, kind):
    assert family(task) == kind


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("atari/pomg", "atari/pong"),
        ("pong", "atari/pong"),
        ("cheetah-run", "dmc/cheetah-run"),
        ("atarri/pong", "atari"),
        ("dmc/cheetah-runn", "dmc/cheetah-run"),
        ("minatar/pong", "did you mean 'atari/pong'"),
        ("gym", "gym/<id>"),
        ("dmc", "list tasks"),
        ("toy/cacth", "toy/catch"),
        ("gym/CartPol-v1", "gym/CartPole-v1"),
        ("atari/combat", "atari/"),
    ],
)
def test_a_wrong_name_gets_one_line_with_the_nearest_right_one(wrong, meant):
    with pytest.raises(InputError, match=meant) as caught:
        check(wrong)
    assert "\n" not in str(caught.value)


def test_make_refuses_a_misspelled_task(settings):
    with pytest.raises(InputError, match="atari/pong"):
        make("atari/pomg", 1, training=True, config=settings())


def test_importing_the_registry_loads_neither_a_simulator_nor_pytorch():
    code = "import sys, playvirtual.envs; "
    code += "print({'ale_py', 'dm_control', 'mujoco', 'minatar', 'torch'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("atari/pong", "discrete"),
        ("minatar/breakout", "discrete"),
        ("toy/catch", "discrete"),
        ("toy/reach", "continuous"),
        ("dmc/cheetah-run", "continuous"),
    ],
)
def test_the_kind_of_action_space_is_known_without_the_simulator(task, kind, monkeypatch):
    for package in ("ale_py.vector_env", "dm_control", "minatar"):
        monkeypatch.setitem(sys.modules, package, None)  # importing it would fail
    assert action_kind(task) == kind


def test_the_kind_of_action_space_of_an_unknown_task_is_an_error():
    with pytest.raises(InputError, match="'toy/cacth' is not known; did you mean 'toy/catch'"):
        action_kind("toy/cacth")


class Grid:
    """The agent moves on a row of `size` cells; the last one pays 1 and ends the episode."""

    def __init__(self, size: int) -> None:
        self.size, self.frame_shape, self.action_space = size, (1, size, size), spaces.Discrete(2)
        self.reset(0)

    def reset(self, seed):
        self.cell = seed % (self.size - 1)

    def step(self, action):
        self.cell = max(self.cell + 2 * int(action) - 1, 0)
        reached = self.cell == self.size - 1
        return EnvStep(float(reached), reached, reached)

    def frame(self):
        return np.eye(self.size, dtype=np.uint8)[self.cell][None, :, None].repeat(self.size, 2)

    def render(self):
        return self.frame().transpose(1, 2, 0).repeat(3, 2)

    def close(self):
        pass


SIZES = {"small": 3, "large": 12}


def make_grid(name, config):
    return Grid(SIZES[name])


@pytest.fixture
def no_families_are_left(monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))


@pytest.fixture
def grid(no_families_are_left):
    options = {"image_size": 12, "frame_stack": 1}
    register_env("grid", make_grid, tasks=("small", "large"), actions="discrete", options=options)


def test_one_call_registers_a_family(grid, settings):
    assert task_names()[-2:] == ["grid/small", "grid/large"]
    assert family("grid/small") == "grid"
    assert action_kind("grid/large") == "discrete"
    assert env_family("grid/small").options == {"image_size": 12, "frame_stack": 1}
    env = make("grid/small", 2, training=True, config=settings(action_repeat=1))
    assert env.frame_shape == (1, 3, 3)
    assert env.reset([0, 1], [0, 1])[:, 0, :, 0].tolist() == [[1, 0, 0], [0, 1, 0]]
    step = env.step(np.array([1, 1]))
    assert step.rewards.tolist() == [0, 1]
    assert step.done.tolist() == [False, True]
    assert env.render(0).tolist() == np.array([0, 1, 0])[:, None, None].repeat(3, 1).repeat(3, 2).tolist()
    env.close()


@pytest.mark.parametrize(("time_limit", "options"), [(None, {}), (9_000, {}), (None, {"max_episode_frames": 7})])
def test_the_limit_of_scored_episodes_is_said_where_neither_environment_nor_options_have_one(
    no_families_are_left, settings, caplog, time_limit, options
):
    caplog.set_level("INFO", "playvirtual")
    grid = Grid(3)
    if time_limit:
        grid.time_limit = time_limit
    register_env("endless", lambda name, config: grid)
    config = settings(**{"action_repeat": 1, "max_episode_frames": 0, **options})
    make("endless/grid", 1, training=True, config=config)
    assert not caplog.records
    env = make("endless/grid", 1, training=False, config=config)
    env.reset([0], [0])
    frames = next((n for n in range(1, 6_000) if env.step(np.array([0])).done[0]), 0)
    assert frames == (7 if options else 0 if time_limit else 5_000)
    assert [record.getMessage() for record in caplog.records] == (
        []
        if time_limit or options
        else [
            "endless/grid declares no time limit (an attribute time_limit): episodes that are scored are truncated "
            "after 5,000 frames at the latest; --max-episode-frames sets another limit"
        ]
    )


class Shades(gymnasium.Env):
    """Renders a gray image and observes what it is told to."""

    action_space = spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, observation_space):
        self.observation_space = observation_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, True, {}

    def render(self):
        return np.zeros((6, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(0, 255, (6, 6, 3), np.uint8), None),
        (spaces.Box(0, 1, (6, 6, 3), np.float32), "float32 of shape (6, 6, 3)"),
        (spaces.Discrete(4), "a Discrete"),
    ],
)
def test_training_says_where_the_agent_sees_a_rendering_in_place_of_observations(
    no_families_are_left, settings, caplog, space, said
):
    caplog.set_level("INFO", "playvirtual")
    register_env("shades", lambda name, config: Shades(space))
    config = settings(action_repeat=1, max_episode_frames=10, image_size=6)
    make(f"shades/{type(space).__name__}-{space.dtype}", 1, training=False, config=config)
    assert not caplog.records
    task = f"shades/{space.dtype}"
    make(task, 2, training=True, config=config)
    line = f"{task}: the agent sees what it renders, since its observations, {said}, are no images of uint8"
    assert [record.getMessage() for record in caplog.records] == ([line] if said else [])


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_episodes_of_the_toys_end_at_their_time_limit(task, settings, caplog):
    caplog.set_level("INFO", "playvirtual")
    size = {"toy/catch": 10, "toy/reach": 16}[task]
    config = settings(action_repeat=1, max_episode_frames=0, image_size=size, grayscale=False)
    env = make(task, 1, training=False, config=config)
    env.reset([0], [0])
    action = np.zeros((1, *env.action_space.shape), env.action_space.dtype)
    frames = next(n for n in range(1, 100) if env.step(action).done[0])
    assert frames == {"toy/catch": 9, "toy/reach": 50}[task]
    assert not caplog.records


def test_a_wrong_name_of_a_registered_family_gets_the_nearest_right_one(grid):
    with pytest.raises(InputError, match="'grid/smal' is not known; did you mean 'grid/small'"):
        check("grid/smal")
    with pytest.raises(InputError, match=r"'grid' is a family and not a task; .* such as grid/small"):
        check("grid")


class Switch(gymnasium.Env):
    """A lamp of four pixels that shows the last action."""

    def __init__(self, observation_space, render_mode=None):
        self.observation_space, self.render_mode = observation_space, render_mode
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.on = 0
        return self.render(), {}

    def step(self, action):
        self.on = int(action)
        return self.render(), 1.0, False, False, {}

    def render(self):
        return np.full((2, 2, 3), 255 * self.on, np.uint8)


IMAGE, VECTOR = spaces.Box(0, 255, (2, 2, 3), np.uint8), spaces.Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize("name", ["observed", "rendered"])
def test_a_factory_may_return_a_gymnasium_env(no_families_are_left, settings, name):
    register_env("lamp", lambda name, config: Switch(IMAGE) if name == "observed" else Switch(VECTOR, "rgb_array"))
    env = make(f"lamp/{name}", 1, training=True, config=settings(action_repeat=1, image_size=4))
    assert not env.reset([0], [0]).any()
    assert (env.step(np.array([1])).frames == 255).all()
    assert (env.render(0) == 255).all()


def test_without_tasks_and_actions_every_name_is_accepted_and_made_once_to_find_its_actions(no_families_are_left):
    made = []
    register_env(
        "lamp", lambda name, config: made.append(config.image_size) or Switch(IMAGE), options={"image_size": 5}
    )
    assert action_kind("lamp/any") == action_kind("lamp/any") == "discrete"
    assert made == [5]
    assert not any(task.startswith("lamp/") for task in task_names())


def test_a_gymnasium_env_without_pixels_is_one_line(no_families_are_left, settings):
    register_env("lamp", lambda name, config: Switch(VECTOR), tasks=("dark",), actions="discrete")
    with pytest.raises(
        InputError, match=r"'lamp/dark' shows no pixels; .* its render_mode is None; allowed: "
    ) as caught:
        make("lamp/dark", 1, training=True, config=settings())
    assert "\n" not in str(caught.value)


def test_a_factory_may_be_given_by_its_name_and_is_imported_when_it_is_first_used(
    no_families_are_left, settings, tmp_path, monkeypatch
):
    (tmp_path / "lamps_of_a_test.py").write_text(
        "from tests.envs.test_registry import IMAGE, Switch\ndef make(name, config):\n    return Switch(IMAGE)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # the second time it is the same again
        register_env("lamp", "lamps_of_a_test:make", tasks=("bright",), actions="discrete")
    assert task_names()[-1] == "lamp/bright"
    assert "lamps_of_a_test" not in sys.modules
    env = make("lamp/bright", 1, training=True, config=settings(action_repeat=1, image_size=4))
    assert not env.reset([0], [0]).any()
    register_env("dark", "no_module_of_a_test:make", tasks=("bright",), actions="discrete")
    with pytest.raises(InputError, match="entry_point: 'no_module_of_a_test:make' cannot be loaded"):
        make("dark/bright", 1, training=True, config=settings())


@pytest.mark.parametrize(
    ("factory", "error"),
    [
        (
            lambda name, config: None,
            "task: 'lamp/a' made None, which lacks action_space, reset, step, render, close, fr",
        ),
        (lambda: Switch(IMAGE), "task: 'lamp/a' cannot be made: TypeError: .* takes 0 positional arguments but 2 were"),
        (lambda name, config: {}[name], "task: 'lamp/a' cannot be made: KeyError: 'a'"),
    ],
)
@pytest.mark.parametrize("actions", ["discrete", None])
def test_a_factory_that_makes_no_environment_is_one_line(no_families_are_left, settings, factory, error, actions):
    register_env("lamp", factory, tasks=("a",), actions=actions)
    config = settings()
    find_out = (
        (lambda: action_kind("lamp/a"))
        if actions is None
        else (lambda: make("lamp/a", 1, training=True, config=config))
    )
    with pytest.raises(InputError, match=f"^{error}") as caught:
        find_out()
    assert "\n" not in str(caught.value)


def test_actions_of_another_kind_than_registered_are_one_line(no_families_are_left, settings):
    register_env("lamp", lambda name, config: Switch(IMAGE), tasks=("a",), actions={"a": "continuous"})
    with pytest.raises(
        InputError, match=r"^actions: 'lamp/a' is registered with continuous ones and its action space is"
    ):
        make("lamp/a", 1, training=True, config=settings(image_size=4))


def test_a_name_is_registered_once(grid):
    options = {"image_size": 12, "frame_stack": 1}
    register_env("grid", make_grid, tasks=("small", "large"), actions="discrete", options=options)  # the same again
    register_env("toy", entry_point="playvirtual.envs.families.toy:FAMILY")
    with pytest.raises(InputError, match="'toy' is one of this package's own; allowed: another name"):
        register_env("toy", make_grid, tasks=("huge",), actions="discrete")
    assert "toy/huge" not in task_names()


def test_a_family_of_ones_own_may_be_registered_again_with_changes(grid, caplog):
    """As when a cell of a notebook is run again."""
    register_env("grid", make_grid, tasks=("huge",), actions="discrete")
    assert "grid/huge" in task_names()
    assert "the env family 'grid' is registered again; the newer one is used" in caplog.text


def test_a_family_that_is_registered_again_is_inspected_again(no_families_are_left):
    register_env("lamp", lambda name, config: Switch(IMAGE))
    assert action_kind("lamp/dimmed") == "discrete"

    def dimmed(name, config):
        env = Switch(IMAGE)
        env.action_space = spaces.Box(-1, 1, (1,), np.float32)
        return env

    register_env("lamp", dimmed)
    assert action_kind("lamp/dimmed") == "continuous"


def test_a_family_that_cannot_be_loaded_hides_no_other(no_families_are_left, caplog):
    register_env("broken", entry_point="no_such_module:FAMILY")
    assert "toy/catch" in task_names()
    assert "'broken'" in caplog.text


@pytest.mark.parametrize("name", ["", "a/b", "a b", "grid\n"])
def test_a_family_has_a_plain_name(no_families_are_left, name):
    with pytest.raises(InputError, match="is not allowed; allowed: a name without slashes and spaces"):
        register_env(name, make_grid, tasks=("small",))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "'bad' needs either `make` or `entry_point`"),
        ({"make": make_grid, "entry_point": "a:b"}, "'bad' needs either `make` or `entry_point`"),
        ({"make": "module"}, "make: 'module' of 'bad' is not allowed; .*, or 'module:function'"),
        ({"make": make_grid, "tasks": ()}, r"tasks: \(\) of 'bad' is not allowed"),
        ({"make": make_grid, "tasks": "small"}, "tasks: 'small' of 'bad' is not allowed"),
        ({"make": make_grid, "tasks": ("",)}, "of 'bad' is not allowed; allowed: a sequence of names"),
        ({"make": make_grid, "tasks": ("small",), "actions": "discreet"}, "did you mean 'discrete'"),
        ({"make": make_grid, "tasks": ("small",), "actions": {"large": "discrete"}}, "one entry for each task"),
        ({"entry_point": "module"}, "entry_point: 'module' is not allowed; allowed: 'module:attribute'"),
    ],
)
def test_a_wrong_registration_is_one_line_and_registers_nothing(no_families_are_left, arguments, error):
    with pytest.raises(InputError, match=error) as caught:
        register_env("bad", **arguments)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="task family: 'bad' is not known"):
        check("bad/small")


@pytest.mark.parametrize(
    ("entry_point", "error"),
    [
        (
            "no_such_module:FAMILY",
            "'bad': entry_point: 'no_such_module:FAMILY' cannot be loaded .ModuleNotFoundError: No module",
        ),
        (
            "playvirtual.envs.families.toy:NOTHING",
            "'playvirtual.envs.families.toy:NOTHING' cannot be loaded .AttributeError: module",
        ),
        (
            "playvirtual.envs.families.toy:ROWS",
            "'playvirtual.envs.families.toy:ROWS' of 'bad' is 10; allowed: an EnvFamily",
        ),
    ],
)
def test_an_entry_point_that_holds_no_family_is_one_line(no_families_are_left, entry_point, error):
    register_env("bad", entry_point=entry_point)
    with pytest.raises(InputError, match=error) as caught:
        check("bad/small")
    assert "\n" not in str(caught.value)
