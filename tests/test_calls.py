"""Public functions as people get them wrong: one line that names the argument, its value and what is allowed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import playvirtual as pv

AGENT = "playvirtual/toy-catch"
FUNCTIONS = [name for name in pv.__all__ if inspect.isfunction(getattr(pv, name))]
NOT_EXPLAINED = {"option", "sample_sequences"}  # one is part of a class body, one of `method`, which is usable alone


def message(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(pv.InputError) as error:
        call(*args, **kwargs)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NOT_EXPLAINED])
def test_every_function_explains_arguments_that_it_does_not_have(name: str) -> None:
    function = getattr(pv, name)
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        given = {"path": AGENT} if name == "resume" else {"task": "toy/catch"}
        assert "option: 'xyz_q' is not known; " in message(function, **given, xyz_q=3)
    else:
        said = message(function, **dict.fromkeys(required, "toy/catch"), xyz_q=3)
        assert said.startswith(f"xyz_q: 3 is given to pv.{name}, which has no 'xyz_q'; allowed: ")
    assert f"pv.{name}: 1 is given without a name after " in message(function, *[1] * 12)


@pytest.mark.parametrize(
    "name", ["load", "evaluate", "export", "push", "pull", "build", "benchmark", "register_method"]
)
def test_every_function_explains_arguments_that_it_misses(name: str) -> None:
    assert f"none is given to pv.{name}; allowed: " in message(getattr(pv, name))
    assert message(pv.export, AGENT) == "out: none is given to pv.export; allowed: path, out, format"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"lr": 3}, "learning_rate"),
        ({"learning_rte": 3}, "learning_rate"),
        ({"gamma": 0.9}, "discount"),
        ({"buffer_size": 9}, "capacity"),
        ({"total_timesteps": 9}, "steps"),
        ({"rundir": "x"}, "run_dir"),
        ({"callback": []}, "callbacks"),
        ({"environment": "x"}, "env"),
        ({"verbose": 1}, "quiet"),
    ],
)
def test_an_option_that_others_call_otherwise_is_suggested(given: dict[str, Any], meant: str) -> None:
    (name,) = given
    assert message(pv.train, "toy/catch", **given).startswith(
        f"option: {name!r} is not known; did you mean {meant!r}? "
    )


def test_options_in_a_mapping_are_suggested_too() -> None:
    for call in (lambda: pv.train({"lr": 3}), lambda: pv.configure("toy/catch", config={"lr": 3})):
        assert message(call).startswith("config: option: 'lr' is not known; did you mean 'learning_rate'? ")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: pv.configure("toy/catch", run_dir="x"),
            "run_dir: it is no part of a configuration; allowed: in pv.train",
        ),
        (
            lambda: pv.train("toy/catch", like="toy-cach"),
            "like: 'toy-cach' is not there; did you mean 'playvirtual/toy-",
        ),
        (lambda: pv.train("toy/catch", like=3), "like: 3 is not allowed; allowed: what `pv.train` returned, or"),
        (lambda: pv.train("toy/catch", log=True), "log: True is not allowed; allowed: none, tensorboard, wandb"),
        (lambda: pv.train("toy/catch", run_dir=3), "run_dir: 3 is not allowed; allowed: the path of"),
        (lambda: pv.train("toy/catch", run_dir=""), "run_dir: '' is not allowed; allowed: the path of"),
        (lambda: pv.load("catc"), "run: 'catc' is not there; did you mean 'playvirtual/toy-catch'? allowed: a folder"),
        (
            lambda: pv.load(AGENT, num_env=3),
            "num_env: 3 is given to pv.load, which has no 'num_env'; did you mean 'num_e",
        ),
        (
            lambda: pv.load(name="catc"),
            "name: 'catc' is given to pv.load, which has no 'name'; allowed: path, device, n",
        ),
        (lambda: pv.load(AGENT, path=AGENT), f"path: '{AGENT}' is given to pv.load a second time; allowed: once"),
        (lambda: pv.evaluate(AGENT, watcher=3), "watcher: 3 is not allowed; allowed: a function"),
        (lambda: pv.evaluate(AGENT, progress=3), "progress: 3 is not allowed; allowed: a function"),
        (lambda: pv.export(AGENT, 3), "out: 3 is not allowed; allowed: the path of"),
        (lambda: pv.video(AGENT, 3), "out: 3 is not allowed; allowed: the path of"),
        (lambda: pv.benchmark("toy/catch", repeats="x"), "repeats: 'x' is not allowed; allowed: a whole number"),
        (lambda: pv.load(AGENT).as_gym_policy(1.5), "action_repeat: 1.5 is not allowed; allowed: a whole number"),
        (
            lambda: pv.load(AGENT).reset([3]),
            "which: [3] is not allowed; allowed: a flag for each of 1, or indices below 1",
        ),
        (
            lambda: pv.load(AGENT).reset([True, False]),
            "which: [True, False] is not allowed; allowed: a flag for each of 1",
        ),
        (lambda: pv.register_env("own", 3), "make: 3 of 'own' is not allowed; allowed: a function"),
        (lambda: pv.register_sampler("own", 3), "entry_point: 3 is not allowed; allowed: 'module:attribute'"),
    ],
)
def test_what_is_wrong_is_named(call: Any, said: str) -> None:
    assert message(call).startswith(said)


def test_runs_and_files_beside_the_one_that_is_not_there_are_suggested(tmp_path: Path) -> None:
    (tmp_path / "catch" / "seed-1").mkdir(parents=True)
    (tmp_path / "catch" / "seed-1" / "config.json").write_text("{}")
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "mne.txt").write_text("")
    assert f"did you mean {str(tmp_path / 'catch' / 'seed-1')!r}? allowed: " in message(pv.load, tmp_path / "cach")
    assert message(pv.train, tmp_path / "mne.toml").endswith(f"; did you mean {str(tmp_path / 'mine.toml')!r}?")
    assert "did you mean" not in message(pv.train, tmp_path / "other.toml")


def test_names_that_the_package_has_not() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'trian'; did you mean 'train'\?"):
        pv.trian  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'sweep'; it is a command: `playvirtual sweep --help`"):
        pv.sweep  # noqa: B018
    assert not hasattr(pv, "xyz")


def test_what_explains_wrong_calls_changes_no_right_one() -> None:
    assert pv.load(AGENT, "cpu").act(np.zeros((10, 10), np.uint8)) in range(3)
    assert str(inspect.signature(pv.load)).startswith("(path: ")
    assert (pv.load.__doc__ or "").startswith("The agent of a run's newest checkpoint")
