"""Names of tasks, right and wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from playvirtual.envs import check, family, make, task_names
from playvirtual.envs.atari import ATARI_100K
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


def test_make_checks_too(settings):
    with pytest.raises(InputError, match="atari/pong"):
        make("atari/pomg", 1, training=True, config=settings())


def test_importing_the_registry_loads_no_simulator():
    code = (
        "import sys, playvirtual.envs.registry; print({'ale_py', 'dm_control', 'mujoco', 'minatar'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"
