"""Videos show the game and the agent's values, and change no number; exports have what acting needs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import playvirtual as pv
from playvirtual.training.display.drawing import LEAST_WIDTH, panel_height
from playvirtual.training.display.video import Recorder

QUICK: dict[str, Any] = {
    "device": "cpu",
    "steps": 80,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 4,
    "eval_every": 40,
    "log_every": 20,
    "quiet": True,
}
SMALL_SAC = {"hidden": 16, "M": 2, "batch_size": 8, "auxiliary_batch_size": 4}


@pytest.mark.parametrize(("task", "options"), [("toy/catch", {}), ("toy/reach", SMALL_SAC)])
def test_videos_of_evaluations_change_nothing(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    pv.train(task, run_dir=tmp_path / "a", **QUICK, **options)
    pv.train(task, run_dir=tmp_path / "b", video_at_evaluation=True, **QUICK, **options)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    films = sorted(p.stem for p in (tmp_path / "b" / "videos").iterdir())
    assert films == ["step-000000040", "step-000000080"]


def test_a_video_is_the_rendered_frame_above_a_strip(tmp_path: Path) -> None:
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    agent = pv.load(run.path)
    plain, captioned, loaded = Recorder(), Recorder(agent.unwrapped), Recorder(agent)
    returns = pv.evaluate(run.path, episodes=2, watcher=plain)
    assert pv.evaluate(run.path, episodes=2, watcher=captioned) == returns
    pv.evaluate(run.path, episodes=2, watcher=loaded)
    np.testing.assert_array_equal(loaded.frames, captioned.frames)  # what `pv.load` gives shows its values too
    assert len(plain.frames) == len(captioned.frames)
    height, width, _ = plain.frames[0].shape
    for bare, full in zip(plain.frames, captioned.frames, strict=True):
        left = (full.shape[1] - width) // 2
        np.testing.assert_array_equal(full[:height, left : left + width], bare)
        assert full.shape == (height + panel_height(3), max(width, LEAST_WIDTH), 3)
        assert full[height:].any()
    captioned.save_gif(tmp_path / "play.gif")
    with Image.open(tmp_path / "play.gif") as video:
        assert 1 < video.n_frames <= len(plain.frames)  # equal neighbors are merged


def test_an_mp4_has_every_frame_and_its_colors(tmp_path: Path) -> None:
    """Read back frame by frame: as many as were taken, even sides, the same colors but for the codec's loss."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    recorder = Recorder()
    shades = np.linspace(0, 255, 12).astype(np.uint8)
    recorder.frames = [np.full((41, 60, 3), shade, np.uint8) for shade in shades]
    video = recorder.save(tmp_path / "video")
    assert video == recorder.save(tmp_path / "video.mp4") == tmp_path / "video.mp4"
    reader = ffmpeg.read_frames(str(video))
    assert next(reader)["size"] == (60, 40)
    frames = [np.frombuffer(frame, np.uint8) for frame in reader]
    assert len(frames) == 12
    assert all(abs(int(f.mean()) - int(shade)) <= 4 for f, shade in zip(frames, shades, strict=True))


def test_an_export_is_small_and_acts_like_the_run(tmp_path: Path) -> None:
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    out = pv.export(run.path, tmp_path / "agent")
    assert {p.name for p in out.iterdir()} == {"agent.json", "config.json", "manifest.json", "weights.safetensors"}
    observations = np.random.default_rng(0).integers(256, size=(20, 1, 10, 10), dtype=np.uint8)
    actions = pv.load(run.path, "cpu").unwrapped.act(observations)
    assert pv.load(out, "cpu").unwrapped.act(observations).equal(actions)
    assert pv.evaluate(out, episodes=3) == pv.evaluate(run.path, episodes=3)
    with pytest.raises(pv.InputError, match="exists already"):
        pv.export(run.path, out)
    record = json.loads((out / "agent.json").read_text())
    assert record["step"] == 80
    weights = bytearray((out / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "weights.safetensors").write_bytes(weights)
    with pytest.raises(pv.InputError, match="is damaged"):
        pv.load(out)
