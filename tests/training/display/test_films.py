"""Films: several episodes side by side, with the names and values of the actions."""

import json
from pathlib import Path

import numpy as np
import pytest

import playvirtual as pv
from playvirtual import envs
from playvirtual.cli.main import main
from playvirtual.envs.env import action_names
from playvirtual.training.display import video
from playvirtual.training.display.drawing import MOST_ROWS, grid, value_rows, vector_rows


def test_a_grid_has_every_episode_in_its_place_and_those_that_ended_are_dark() -> None:
    shades = [40, 80, 120]
    episodes = [[np.full((4, 6, 3), shade, np.uint8)] * length for shade, length in zip(shades, (1, 3, 2), strict=True)]
    frames = grid(episodes)
    assert len(frames) == 3  # as the longest
    assert {frame.shape for frame in frames} == {(12, 16, 3)}  # two by two, with gaps
    corners = [(0, 0), (0, 10), (8, 0), (8, 10)]
    seen = [[int(frame[y, x, 0]) for y, x in corners] for frame in frames]
    assert seen == [[40, 80, 120, 0], [20, 80, 120, 0], [20, 80, 60, 0]]


def test_rows_of_values_and_of_actions() -> None:
    rows = value_rows(["left", "stay", "right"], np.array([-1.0, 0.0, 1.0]), chosen=1)
    assert [(row.name, row.value, row.end, row.chosen) for row in rows] == [
        ("left", "-1.00", 0.0, False),
        ("stay", "0.00", 0.5, True),
        ("right", "1.00", 1.0, False),
    ]
    many = value_rows([str(n) for n in range(18)], np.arange(18.0), chosen=0)  # a random action, the worst of all
    assert [row.name for row in many] == ["0", *(str(n) for n in range(18 - MOST_ROWS + 1, 18))]
    assert [(row.start, row.end) for row in vector_rows(np.array([-1.0, 0.0, 0.5, 3.0]))] == [
        (0.0, 0.5),
        (0.5, 0.5),
        (0.5, 0.75),
        (0.5, 1.0),
    ]


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("toy/catch", ("left", "stay", "right")),
        ("minatar/breakout", ("no-op", "left", "right")),
        ("atari/pong", ("noop", "fire", "right", "left", "rightfire", "leftfire")),
        ("toy/reach", ()),
    ],
)
def test_environments_name_their_actions(task: str, names: tuple[str, ...]) -> None:
    env = envs.make(task, 1, training=False, config=pv.build(task).environment)
    try:
        assert action_names(env) == names
    finally:
        env.close()


def test_the_command_films_the_episodes_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"steps": 60, "learning_starts": 40, "K": 2, "eval_episodes": 2, "updates_per_step": 0.25}
    run = pv.train("toy/catch", run_dir=tmp_path / "run", device="cpu", quiet=True, **quick)
    monkeypatch.setattr(video, "find_spec", lambda name: None)  # as without imageio-ffmpeg
    assert main(["video", str(run.path), "--episodes", "2", "--device", "cpu"]) == 0
    returns = ", ".join(f"{value:g}" for value in run.returns)
    assert capsys.readouterr().out == f"returns: {returns}\nvideo: {run.path}/videos/episodes-2-seed-1.gif\n"
    assert (run.path / "videos" / "episodes-2-seed-1.gif").read_bytes().startswith(b"GIF89a")
    for words, said in (
        (["--episodes", "26"], "episodes: 26 is not allowed; allowed: 1 to 25"),
        (["--frames", "0"], "frames: 0 is not allowed; allowed: 1 to "),
        (["--out", "/proc/x"], "out: '/proc/x' cannot be written: "),
        (["--out", "x.mp4"], "out: 'x.mp4' needs the extra `video`; allowed without it: a name that ends in .gif"),
    ):
        assert main(["video", str(run.path), "--device", "cpu", *words]) == 2
        assert f"playvirtual: error: {said}" in capsys.readouterr().err
    assert json.loads((run.path / "evaluations.jsonl").read_text())["returns"] == run.returns
    assert pv.video(run, tmp_path / "x.gif", episodes="2", frames="3", device="cpu")[1] == run.returns  # type: ignore[arg-type]
    for out, written in (("film.gif", "film.gif"), ("film.v2", "film.v2.gif")):
        assert main(["video", str(run.path), "--device", "cpu", "--out", str(tmp_path / out)]) == 0
        assert (tmp_path / written).read_bytes().startswith(b"GIF89a")
