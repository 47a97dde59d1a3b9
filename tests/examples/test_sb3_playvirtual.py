"""The example with Stable-Baselines3: its DQN and SAC learn the whole objective, can be saved, and play."""

import copy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
SCRIPT = Path(__file__).parents[2] / "examples" / "sb3_playvirtual.py"
if not SCRIPT.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))
try:
    example = import_module("sb3_playvirtual")
finally:
    sys.path.remove(str(SCRIPT.parent))

ENVS = {"dqn": "Catch-v0", "sac": "Reach-v0"}
pytestmark = pytest.mark.slow(seconds=6)  # every test needs a trained agent


@pytest.fixture(scope="module", params=ENVS)
def agent(request: pytest.FixtureRequest) -> Any:
    """Has played 60 steps and learned from the last 20 of them."""
    agent = example.make(request.param, ENVS[request.param], seed=1, learning_starts=40)
    agent.learn(60)
    return agent


def test_the_objective_moves_encoder_and_models_and_the_algorithm_the_rest(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DQN", "SAC"):  # the algorithm's own gradient steps are left out
        monkeypatch.setattr(getattr(example, name), "train", lambda self, gradient_steps, batch_size: None)
    encoder = agent.policy.get_submodule(agent.encoder_at)
    parts = {"encoder": encoder, "target": agent.aux.target_encoder, "h": agent.aux.virtual.h, "b": agent.aux.virtual.b}
    before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
    everything = copy.deepcopy(agent.policy.state_dict())
    agent.train(1, 32)
    for name, part in parts.items():
        assert all(not torch.equal(value, before[name][key]) for key, value in part.state_dict().items()), name
    moved = {key for key, value in agent.policy.state_dict().items() if not torch.equal(value, everything[key])}
    assert moved == {f"{agent.encoder_at}.{key}" for key in encoder.state_dict()}


def test_a_saved_agent_comes_back_whole(agent: Any, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent")
    again = type(agent).load(tmp_path / "agent")
    state, other = agent.aux.state_dict(), again.aux.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in state.items())
    observations = agent.replay_buffer.sample(16).observations.numpy()
    np.testing.assert_array_equal(*(one.predict(observations, deterministic=True)[0] for one in (agent, again)))


def test_the_actor_sees_the_critics_encoder_and_does_not_train_it() -> None:
    sac = example.make("sac", "Reach-v0", seed=0, plain=True)
    images = torch.rand(2, *sac.observation_space.shape)
    seen, features = sac.actor.features_extractor(images), sac.critic.features_extractor(images)
    assert torch.equal(seen, features)
    assert features.requires_grad
    assert not seen.requires_grad


@pytest.mark.parametrize("algorithm", ENVS)
@pytest.mark.parametrize("plain", [True, False])
def test_from_the_command_line(
    algorithm: str,
    plain: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [algorithm, "--steps", "210", "--every", "210", "--seed", "3", "--csv", str(tmp_path / "returns.csv")]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words, *(["--plain"] if plain else [])])
    example.main()
    kind = algorithm.upper() if plain else f"PlayVirtual{algorithm.upper()}"
    assert capsys.readouterr().out.startswith(f"{kind} on {ENVS[algorithm]}, seed 3\nstep 210: mean return ")
    objective = "none" if plain else "playvirtual"
    assert (tmp_path / "returns.csv").read_text().startswith(f"sb3-{algorithm},{ENVS[algorithm]},{objective},3,210,")
