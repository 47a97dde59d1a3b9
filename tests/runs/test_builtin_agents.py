"""The trained agents that come with the package: found by name, small, and as good as their cards say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.runs import checkpoint
from playvirtual.runs.folder import builtin_agents

LARGEST = 1_500_000  # bytes of an agent
NAMES = ("minatar-breakout", "minatar-space_invaders", "toy-catch", "toy-reach")


def card_value(folder: Path) -> tuple[float, float]:
    """The mean and the standard deviation in the metadata of a card."""
    (line,) = (line for line in (folder / "README.md").read_text().splitlines() if line.startswith("model-index: "))
    (result,) = json.loads(line.removeprefix("model-index: "))[0]["results"]
    mean, spread = result["metrics"][0]["value"].split(" +/- ")
    return float(mean), float(spread)


def test_these_agents_come_with_the_package() -> None:
    assert tuple(builtin_agents()) == tuple(f"playvirtual/{name}" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_by_name_and_scores_what_its_card_says(name: str) -> None:
    """The mean of 12 other episodes lies within four standard errors of the card's over 100."""
    folder = builtin_agents()[f"playvirtual/{name}"]
    checkpoint.verify(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < LARGEST
    agent = pv.load(f"playvirtual/{name}", "cpu")
    assert agent.unwrapped.observation_shape[1:] in ((10, 10), (12, 12))
    mean, spread = card_value(folder)
    returns = pv.evaluate(f"playvirtual/{name}", episodes=12, seed=77, device="cpu")
    assert abs(np.mean(returns) - mean) <= 4 * spread * (1 / 12 + 1 / 100) ** 0.5


def test_a_wrong_name_is_one_line_with_the_nearest() -> None:
    with pytest.raises(pv.InputError, match="did you mean 'playvirtual/minatar-breakout'"):
        pv.load("playvirtual/minatar-brakout")


def test_a_folder_of_that_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pv.export("playvirtual/toy-catch", "playvirtual/toy-reach")
    assert pv.load("playvirtual/toy-reach", "cpu").action_space == pv.load("playvirtual/toy-catch", "cpu").action_space


def test_a_video_of_one_is_written_here_and_not_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "playvirtual/toy-catch", "--episodes", "2", "--video", "--device", "cpu"]) == 0
    written = capsys.readouterr().out.splitlines()[-1].removeprefix("video: ")
    assert written.startswith("videos/evaluation-seed-1.")
    assert (tmp_path / written).is_file()
    assert not (builtin_agents()["playvirtual/toy-catch"] / "videos").exists()


def test_a_film_of_one_is_written_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, _ = pv.video("playvirtual/toy-catch", episodes=1, device="cpu")
    assert file.parent == Path("videos")
    assert file.is_file()
    assert not (builtin_agents()["playvirtual/toy-catch"] / "videos").exists()


def test_built_in_agents_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "agents"]) == 0
    assert capsys.readouterr().out.splitlines() == list(builtin_agents())
