"""The model card says what is true of the agent beside it, in the form that hubs read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import playvirtual as pv
from playvirtual.cli.flags import given_fields
from playvirtual.cli.main import _parser, main
from playvirtual.config import registry
from playvirtual.config.build import train_command
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import read_step
from playvirtual.share.card import _code
from tests.runs.untrained_export import write_export


def front_matter(text: str) -> dict[str, Any]:
    """The metadata between the two lines of dashes, each field on a line of its own in JSON."""
    head = text.split("---\n")[1]
    return {name: json.loads(value) for name, _, value in (line.partition(": ") for line in head.splitlines())}


def test_a_card_has_the_score_the_command_and_the_film(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = write_export(tmp_path / "agent", "toy/catch", seed=3, hidden=16, frame_stack=2, eval_epsilon=0.5)
    out = tmp_path / "card"
    assert main(["export", str(agent), "--out", str(out), "--card", "--episodes", "8"]) == 0
    assert capsys.readouterr().out == f"export: {out}\n"
    text = (out / "README.md").read_text()
    returns = pv.evaluate(agent, episodes=8)
    mean, spread = np.mean(returns), np.std(returns)
    assert spread > 0
    found = front_matter(text)
    (result,) = found["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == f"{mean:.2f} +/- {spread:.2f}"
    assert result["dataset"] == {"name": "toy/catch", "type": "toy/catch"}
    assert (found["library_name"], found["pipeline_tag"]) == ("playvirtual", "reinforcement-learning")
    assert f"over 8 episodes | {mean:.2f} ± {spread:.2f} |" in text
    assert "playvirtual train toy/catch --seed 3 --frame-stack 2 --hidden 16 --eval-epsilon 0.5\n" in text
    (film,) = out.glob("replay.*")
    assert f"![one episode]({film.name})" in text
    assert film.stat().st_size > 1000
    assert pv.evaluate(out, episodes=8) == returns


class Light(gymnasium.Env[Any, Any]):
    """Shows black for three steps; `resets` are called at each reset."""

    observation_space = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, resets: list[Callable[[], object]]) -> None:
        self.resets, self.age = resets, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        for call in self.resets:
            call()
        self.age = 0
        return np.zeros((10, 10, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.zeros((10, 10, 3), np.uint8), float(action), self.age == 3, False, {}


def test_a_card_is_of_the_weights_beside_it_whatever_the_run_writes_meanwhile(tmp_path: Path) -> None:
    """A run that was still training had removed the checkpoint when the card asked it for its step."""
    resets: list[Callable[[], object]] = []
    options = {"method": "rl", "steps": 60, "learning_starts": 30, "checkpoint_every": 30, "eval_episodes": 1}
    run = pv.train(
        env=lambda: Light(resets), run_dir=tmp_path / "run", device="cpu", eval_every=0, quiet=True, **options
    )
    older, newest = checkpoint.complete(run.path)
    later = newest.rename(tmp_path / "later")

    def train_on() -> None:
        if later.exists():
            later.rename(newest)
            shutil.rmtree(older)

    resets.append(train_on)
    out = pv.export_with_card(run, tmp_path / "card", device="cpu")
    assert read_step(out) == 30
    assert ", 30 agent steps." in (out / "README.md").read_text()
    assert not older.exists()


def test_a_card_names_what_an_extension_has_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_all()
    for name in ("_methods", "_samplers"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    pv.register_sampler("my-sampler", "playvirtual.method:Uniform")
    pv.register_method("mine", agents={"discrete": "rainbow"}, changes={"virtual_actions": "my-sampler"})
    for method, said in (("mine", ", and the extension of it that registers `mine`, `my-sampler`:"), ("spr", ":")):
        agent = write_export(tmp_path / method, "toy/catch", method=method)
        out = pv.export_with_card(agent, tmp_path / f"{method}-card", episodes=1, device="cpu")
        (line,) = (line for line in (out / "README.md").read_text().splitlines() if "With the Python package" in line)
        assert line.endswith(f" or newer{said}")


def test_hubs_read_the_metadata(tmp_path: Path) -> None:
    """By the hub's own parser: the task, the environment and the score of the model index."""
    cards = pytest.importorskip("huggingface_hub")
    out = pv.export_with_card(
        write_export(tmp_path / "agent", "toy/reach"), tmp_path / "card", episodes=2, device="cpu"
    )
    data = cards.ModelCard.load(out / "README.md").data
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_type) == ("reinforcement-learning", "toy/reach")
    assert (result.metric_type, data.library_name) == ("mean_reward", "playvirtual")
    assert re.fullmatch(r"\d+\.\d\d \+/- \d+\.\d\d", result.metric_value)


@pytest.mark.parametrize(
    "options",
    [
        {"task": "toy/catch"},
        {"task": "toy/reach", "method": "spr", "seed": 4, "K": 2, "device": "cpu"},
        {"task": "minatar/breakout", "method": "drq", "preset": "reference", "channels": (8,), "eval_epsilon": 0.25},
        {"task": "atari/pong", "grayscale": False, "M": "3A", "steps": 4321, "life_loss_is_terminal": False},
    ],
)
def test_the_command_makes_the_same_configuration(options: dict[str, Any]) -> None:
    config = pv.build(**options)
    words = shlex.split(train_command(config))[1:]
    parsed = _parser(words).parse_args(words)
    choices = {name: getattr(parsed, name) for name in ("method", "preset") if getattr(parsed, name)}
    assert pv.build(parsed.task, **choices, **given_fields(parsed), device=config.device) == config
    assert "--device" not in words


def test_nothing_in_a_configuration_ends_its_code() -> None:
    assert _code("a`b\n# heading") == "`a'b # heading`"


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = write_export(tmp_path / "agent", "toy/catch")
    assert main(["export", str(agent), "--out", str(tmp_path / "card"), "--episodes", "3"]) == 2
    assert capsys.readouterr().err.endswith("episodes: 3 is given and nothing is scored; allowed: with --card\n")
    with pytest.raises(pv.InputError, match="episodes: 0 is not allowed"):
        pv.export_with_card(agent, tmp_path / "card", episodes=0)
    assert not (tmp_path / "card").exists()
    with pytest.raises(pv.InputError, match="exists already"):
        pv.export_with_card(agent, agent)
