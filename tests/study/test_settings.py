"""Which options make two runs different settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual import envs
from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.errors import InputError
from playvirtual.study.settings import changes, other_results
from playvirtual.study.sweep.grids import Job
from playvirtual.study.sweep.sweep import Changed, state
from tests.study.toys import CATCH
from tests.study.untrained import write_run


@pytest.mark.parametrize(
    ("task", "options", "changed"),
    [
        ("toy/catch", {"eval_envs": 7}, {"eval_envs": 7}),
        ("toy/catch", {"eval_envs": 7, "eval_epsilon": 0.0}, {"eval_epsilon": 0.0}),
        ("toy/reach", {"eval_envs": 7, "device": "cpu", "threads": 2}, {}),
    ],
)
def test_the_envs_of_an_evaluation_matter_where_its_actions_are_random(
    task: str, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert changes(to_dict(build(task, **options))) == changed


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """The record of a version that did not have these options yet."""
    inner = {name: without(value, *names) if isinstance(value, dict) else value for name, value in record.items()}
    return {name: value for name, value in inner.items() if name not in names}


def test_a_run_from_before_an_option_has_its_default() -> None:
    names = ("background", "random_steps", "env_args", "stop_at_score")
    for task in ("minatar/breakout", "toy/reach"):
        earlier = without(to_dict(build(task)), *names)
        assert other_results(earlier, build(task)) == []
        assert other_results(earlier, build(task, random_steps=50)) == ["random_steps: 0 → 50"]
        assert other_results(without(earlier, "K"), build(task))[0].startswith("K: absent → ")


@pytest.mark.parametrize(("epsilon", "same"), [(0.5, False), (0.0, True)])
@pytest.mark.slow
def test_the_envs_of_an_evaluation_change_its_returns_where_its_actions_are_random(
    tmp_path: Path, epsilon: float, same: bool
) -> None:
    common = {**CATCH, "method": "rl", "eval_episodes": 20, "eval_epsilon": epsilon}
    runs = [
        pv.train("toy/catch", run_dir=tmp_path / str(num_envs), eval_envs=num_envs, **common) for num_envs in (3, 20)
    ]
    assert (runs[0].returns == runs[1].returns) is same


def test_a_started_run_must_have_the_same_options_and_a_finished_one_those_that_decide_its_numbers(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "run", "toy/catch", "rl", 1, 0.5)

    def found(**options: Any) -> str:
        return state(Job("RL", build("toy/catch", method="rl", **options), options, tmp_path / "run"))

    assert found(log_every=7, device="cpu") == "finished"
    with pytest.raises(Changed, match=r"learning_rate: 0\.001 → 0\.5"):
        found(learning_rate=0.5)
    (tmp_path / "run" / "evaluations.jsonl").write_text('{"step": 7999, "mean": 0.5}\n')  # of 8,000
    assert found(device="cpu") == "started"
    (tmp_path / "run" / "evaluations.jsonl").unlink()
    assert found(device="cpu") == "started"
    with pytest.raises(Changed, match="log_every: 250 → 7"):
        found(log_every=7)
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "precision"}))
    with pytest.raises(InputError, match=r"cannot be read: config\.json: the field 'precision' is missing; remove it"):
        found()


def test_the_size_that_a_family_has_of_its_own_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report said that all runs of such a family were changed from the defaults."""
    monkeypatch.setattr(envs.registry, "FAMILIES", dict(envs.registry.FAMILIES))
    options = {"size": "small", "image_size": 12}
    pv.register_env("own", lambda name, config: None, tasks=("task",), actions="discrete", options=options)  # type: ignore[arg-type,return-value]
    assert changes(to_dict(build("own/task"))) == {}
    assert changes(to_dict(build("own/task", size="medium"))) == {"size": "medium"}
    assert changes(to_dict(build("atari/pong", size="small"))) == {"size": "small"}
