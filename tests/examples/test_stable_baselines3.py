"""The example with Stable-Baselines3: its agent learns the paper's losses, can be saved, and plays."""

import copy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
SCRIPT = Path(__file__).parents[2] / "examples" / "stable_baselines3_dqn.py"
if not SCRIPT.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path.insert(0, str(SCRIPT.parent))
try:
    example = import_module("stable_baselines3_dqn")
finally:
    sys.path.remove(str(SCRIPT.parent))

pytestmark = pytest.mark.slow  # every test needs a trained agent


@pytest.fixture(scope="module")
def agent() -> Any:
    """Has played 300 steps and learned from a third of them, with λ_cyc at its maximum from the start."""
    agent = example.make("breakout", seed=1, learning_starts=200, i_end=0)
    agent.learn(300)
    return agent


def test_states_become_predictable_and_cycles_close(agent: Any) -> None:
    history = np.array([agent.learn_states(64) for _ in range(150)])  # (updates, 2): L_pred, L_cyc
    assert history[-10:, 0].mean() < 0.5 * history[:10, 0].mean()
    assert history[-10:, 1].mean() < 0.5 * history[:10, 1].mean()


def test_encoder_and_models_learn_and_the_value_head_is_left_alone(agent: Any) -> None:
    parts = {"encoder": agent.q_net.features_extractor, "models": agent.virtual, "head": agent.q_net.q_net}
    target = agent.q_net_target
    before = {name: copy.deepcopy(part.state_dict()) for name, part in {**parts, "target": target}.items()}
    agent.learn_states(64)
    for name, part in {**parts, "target": target}.items():
        moved = [not torch.equal(value, before[name][key]) for key, value in part.state_dict().items()]
        assert all(moved) if name in ("encoder", "models") else not any(moved)


def test_a_saved_agent_comes_back_whole(agent: Any, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent")
    again = example.VirtualDQN.load(tmp_path / "agent")
    state, other = agent.virtual.state_dict(), again.virtual.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in state.items())
    observations = agent.replay_buffer.sample(16).observations.numpy()
    np.testing.assert_array_equal(*(one.predict(observations, deterministic=True)[0] for one in (agent, again)))


@pytest.mark.filterwarnings("ignore:.*already in registry")  # the games, which the other tests have registered
def test_from_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--game", "space_invaders", "--steps", "1100"])
    example.main()
    assert capsys.readouterr().out.startswith("VirtualDQN, space_invaders, seed 0: ")
