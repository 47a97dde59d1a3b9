"""gym/<id>: the action space of a user's own environment decides between Rainbow and SAC."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.config.schema import RainbowConfig, SacConfig
from playvirtual.study.report.report import report
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import jobs
from tests.study.untrained import write_run


class Noise(gymnasium.Env[Any, Any]):
    """Ten steps of random pixels; pays the sum of the actions."""

    observation_space = spaces.Box(0, 255, (20, 30, 3), np.uint8)
    made = 0

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        Noise.made += 1
        self.action_space = action_space

    def _look(self) -> Any:
        return self.np_random.integers(256, size=self.observation_space.shape, dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return self._look(), float(np.sum(action)), False, self._time == 10, {}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    actions = {"NoiseBox-v0": spaces.Box(-2.0, 2.0, (3,), np.float32), "NoiseDiscrete-v0": spaces.Discrete(4)}
    actions["NoisePlanned-v0"] = spaces.Discrete(2)
    for name, space in actions.items():
        gymnasium.register(name, entry_point=Noise, kwargs={"action_space": space})
    yield
    for name in actions:
        gymnasium.registry.pop(name, None)


def test_discrete_actions_get_rainbow() -> None:
    config = build("gym/NoiseDiscrete-v0", size="paper")
    assert isinstance(config.agent, RainbowConfig)
    shown = config.environment
    assert (shown.image_size, shown.grayscale, shown.frame_stack, shown.action_repeat) == (84, True, 4, 1)
    assert config.step_unit == "agent"


def test_reference_holds_for_the_agents_that_these_environments_get() -> None:
    rainbow, sac = (build(f"gym/Noise{kind}-v0", preset="reference").agent for kind in ("Discrete", "Box"))
    assert isinstance(rainbow, RainbowConfig)
    assert isinstance(sac, SacConfig)
    assert (rainbow.noisy_sigma, rainbow.target_moment) == (0.1, "before-step")
    assert (sac.projection_hidden, sac.encoder_tanh) == (100, False)


def test_a_box_gets_sac_and_trains(tmp_path: Path) -> None:
    config = build("gym/NoiseBox-v0")
    assert isinstance(config.agent, SacConfig)
    assert (config.environment.action_repeat, config.step_unit) == (1, "agent")
    small = {"image_size": 16, "crop_size": 14, "channels": "8", "kernel_sizes": "3", "strides": "2", "hidden": 16}
    batches = {
        "batch_size": 8,
        "auxiliary_batch_size": 4,
        "steps": 40,
        "learning_starts": 30,
        "eval_episodes": 2,
        "eval_every": 0,
    }
    run = pv.train("gym/NoiseBox-v0", device="cpu", run_dir=tmp_path / "run", quiet=True, **small, **batches)
    assert len(run.returns) == 2
    assert all(abs(r) <= 60 for r in run.returns)  # ten steps, three actions, each within ±2
    assert pv.load(run.path, device="cpu").unwrapped.act(np.zeros((9, 16, 16), np.uint8)).shape == (3,)


def test_a_sweep_is_planned_with_one_environment_and_reported_with_none(tmp_path: Path) -> None:
    before = Noise.made
    planned = jobs(experiment("minatar"), suite("gym/NoisePlanned-v0"), 5, tmp_path / "runs")
    assert (len(planned), Noise.made - before) == (15, 1)
    for job in planned:
        write_run(job.path, job.config.task, job.config.method, job.config.seed, 0.5)
    del gymnasium.registry["NoisePlanned-v0"]
    assert report([tmp_path / "runs"], tmp_path / "out").summary == "15 finished runs of 1 task"
    assert Noise.made - before == 1
