"""N steps, a stop and N more steps are bit-exactly 2N steps: metrics, scores, weights, replay, priorities."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.envs.families import gl
from playvirtual.replay import snapshot
from playvirtual.runs import checkpoint
from playvirtual.runs.state import flatten_state, from_bytes, to_bytes, unflatten_state
from playvirtual.training.display.progress import Lines
from playvirtual.training.runner import run
from tests.training.equal_runs import same
from tests.training.interrupting import At, interrupted

SMALL: dict[str, Any] = {"device": "cpu", "quiet": True, "log_every": 30, "checkpoint_every": 0}
CATCH = {**SMALL, "steps": 160, "learning_starts": 60, "K": 2, "eval_episodes": 4, "eval_every": 75, "capacity": 90}
ATARI = {
    **SMALL,
    "steps": 60,
    "learning_starts": 30,
    "updates_per_step": 0.5,
    "hidden": 16,
    "channels": "8,8,8",
    "M": 1,
    "K": 2,
    "batch_size": 4,
    "n_step": 3,
    "eval_episodes": 2,
    "eval_every": 0,
    "max_episode_frames": 400,
}
CONTINUOUS = {
    **SMALL,
    "steps": 120,
    "learning_starts": 50,
    "hidden": 16,
    "channels": "8",
    "kernel_sizes": "3",
    "strides": "2",
    "K": 2,
    "M": 2,
    "batch_size": 8,
    "auxiliary_batch_size": 4,
    "eval_episodes": 2,
    "eval_every": 60,
}
DMC = {
    **CONTINUOUS,
    "steps": 480,
    "eval_every": 0,
    "eval_episodes": 1,
    "learning_starts": 40,
    "max_episode_frames": 160,
    "image_size": 32,
    "crop_size": 28,
}
RUNS = [
    ("toy/catch", CATCH, 101),
    ("minatar/breakout", CATCH, 47),
    pytest.param("atari/breakout", ATARI, 41, marks=pytest.mark.slow),
    ("toy/reach", CONTINUOUS, 83),
    pytest.param("dmc/cartpole-swingup", DMC, 47, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "options", "stop"), RUNS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    task: str, options: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    if task.startswith("dmc/"):
        pytest.importorskip("dm_control")
        if not _renders():
            pytest.skip("no off-screen rendering here")
    unit = pv.build(task).environment.action_repeat if task.startswith("dmc/") else 1
    whole = pv.train(task, run_dir=tmp_path / "whole", **options)
    parts = tmp_path / "parts"
    interrupted(task, options, parts, stop * unit)
    torch.manual_seed(5)  # the global random states play no part
    np.random.seed(5)
    again = pv.train(task, run_dir=parts, resume=True, **options)
    assert again.returns == whole.returns
    same(tmp_path / "whole", parts)
    if task == "atari/breakout":  # random play scores 1.7, the human player 30.5
        line = json.loads((parts / "evaluations.jsonl").read_text())
        assert line["hns"] == pytest.approx((line["mean"] - 1.7) / 28.8)


@pytest.mark.parametrize(("task", "options"), [("toy/catch", CATCH), ("toy/reach", CONTINUOUS)])
def test_a_run_leaves_the_global_generators_alone(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

    before = states()
    pv.train(task, run_dir=tmp_path / "run", **options)
    assert states() == before


@pytest.mark.slow
def test_many_stops_and_other_checkpoint_intervals_change_nothing(tmp_path: Path) -> None:
    pv.train("toy/catch", run_dir=tmp_path / "whole", **CATCH)
    for step in (3, 62, 75, 76, 139):
        if step == 3:
            interrupted("toy/catch", CATCH, tmp_path / "parts", step)
            continue
        config = pv.build("toy/catch", **{k: v for k, v in CATCH.items() if k != "quiet"})
        with pytest.raises(pv.Interrupted):
            run(config, tmp_path / "parts", At(step, lambda: signal.raise_signal(signal.SIGINT)), resume=True)
    pv.resume(tmp_path / "parts", quiet=True)
    same(tmp_path / "whole", tmp_path / "parts")
    often = {**CATCH, "checkpoint_every": 7}
    pv.train("toy/catch", run_dir=tmp_path / "often", **often)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "often" / name).read_bytes()


def test_the_last_two_checkpoints_are_kept_and_share_no_file(tmp_path: Path) -> None:
    """An unchanged chunk is linked, but never from a checkpoint that stays."""

    size, snapshot.CHUNK_BYTES = snapshot.CHUNK_BYTES, 2_000  # 20 frames of 10 × 10
    try:
        pv.train("toy/catch", run_dir=tmp_path / "run", **{**CATCH, "capacity": 1000, "checkpoint_every": 25})
    finally:
        snapshot.CHUNK_BYTES = size
    kept = checkpoint.complete(tmp_path / "run")
    assert [p.name for p in kept] == ["step-000000150", "step-000000160"]
    inodes = [{f.stat().st_ino for f in path.iterdir()} for path in kept]
    assert not inodes[0] & inodes[1]
    chunks = [sorted(f.name for f in path.glob("frames-*")) for path in kept]
    assert len(chunks[0]) == 8
    assert chunks[0][:7] == chunks[1][:7]


def test_a_finished_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = pv.train("toy/catch", run_dir=tmp_path / "run", **CATCH)
    before = {p: p.stat().st_mtime_ns for p in first.path.rglob("*") if p.name != "run.lock"}
    again = pv.train("toy/catch", run_dir=tmp_path / "run", resume=True, **CATCH)
    assert again == first
    assert "is finished already" in capsys.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in first.path.rglob("*") if p.name != "run.lock"}


def test_a_changed_configuration_is_refused_by_its_fields(tmp_path: Path) -> None:
    interrupted("toy/catch", CATCH, tmp_path / "run", 20)
    with pytest.raises(pv.InputError, match=r"another configuration \(steps: 160 → 150; K: 2 → 3\)"):
        pv.train("toy/catch", run_dir=tmp_path / "run", resume=True, **{**CATCH, "steps": 150, "K": 3})
    with pytest.raises(pv.InputError, match=r"\(learning_rate: 0.001 → 0.5\); allowed"):
        pv.resume(tmp_path / "run", learning_rate=0.5)
    with pytest.raises(pv.InputError, match="another configuration"):
        pv.train("toy/reach", run_dir=tmp_path / "run", resume=True, quiet=True)


def test_a_run_may_resume_on_another_device(tmp_path: Path) -> None:
    interrupted("toy/catch", {**CATCH, "device": "auto"}, tmp_path / "run", 70)
    assert pv.resume(tmp_path / "run", device="cpu", quiet=True).returns
    assert checkpoint.newest(tmp_path / "run").name.endswith(f"{CATCH['steps']}")
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["device"] == "auto"  # as it was started


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts(tmp_path: Path) -> None:
    """No folder, an empty one, one without a checkpoint: the run starts, and is the same run."""
    pv.train("toy/catch", run_dir=tmp_path / "a", **CATCH)
    pv.train("toy/catch", run_dir=tmp_path / "b", resume=True, **CATCH)
    same(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.lock").touch()
    pv.train("toy/catch", run_dir=tmp_path / "c", resume=True, **CATCH)
    same(tmp_path / "a", tmp_path / "c")
    with pytest.raises(pv.InputError, match="is not there"):
        pv.resume(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.tex").write_text("mine")
    with pytest.raises(pv.InputError, match="contains something other than a run"):
        pv.train("toy/catch", run_dir=tmp_path / "e", resume=True, **CATCH)
    assert (tmp_path / "e" / "thesis.tex").read_text() == "mine"


class Moody(gymnasium.Env[Any, Any]):
    """What it shows comes from the operating system, whatever the seed."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._look(), 0.0, False, self.time == 30, {}

    def _look(self) -> Any:
        return np.frombuffer(os.urandom(100), np.uint8).reshape(10, 10, 1)


def test_an_environment_that_its_seed_does_not_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymnasium.register("Moody-v0", Moody)
    options = {**ATARI, "image_size": 10, "channels": "8", "kernel_sizes": "3", "strides": "1", "max_episode_frames": 0}
    interrupted("gym/Moody-v0", options, tmp_path / "run", 40)
    pv.resume(tmp_path / "run", quiet=True)
    assert "gym/Moody-v0 gave another observation" in capsys.readouterr().err
    numbers, acted, episodes = (
        checkpoint.read_tensors(checkpoint.newest(tmp_path / "run"), "state.safetensors")[f"state.replay.{name}"]
        for name in ("entry_ids", "has_action", "episodes")
    )
    # 60 steps; games end at 30, by the stop at 41, and would again at 71.
    assert len(numbers) == 62
    assert torch.nonzero(~acted).flatten().tolist() == [30, 42]
    assert episodes.tolist() == [0] * 31 + [1] * 12 + [2] * 19


def test_times_continue_where_they_stopped(tmp_path: Path) -> None:
    interrupted("toy/catch", CATCH, tmp_path / "run", 100)
    pv.resume(tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [30, 60, 75, 90, 120, 150, 150, 160, 160]
    for name in ("seconds", "environment", "update"):
        assert [line[name] for line in lines] == sorted(line[name] for line in lines)
    last = lines[-2]
    assert last["steps_per_second"] > 0
    assert 0.5 < sum(last["shares"].values()) <= 1
    assert last["shares"].keys() == {"environment", "update", "evaluation", "checkpoint"}
    assert last["memory_mb"] > 50


def test_rates_count_from_where_the_run_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    """One step after 900 others is no rate of 901 steps."""
    lines = Lines("run", 1000, every=0.0)
    lines.begin(900)
    time.sleep(0.2)
    lines.step(901, "score 1.0")
    said = r"run: 901/1000 steps, ([\d.]+)/s, (\d+):(\d\d):(\d\d) left, score 1.0\n"
    shown = re.fullmatch(said, capsys.readouterr().out)
    assert shown is not None
    assert 0 < float(shown[1]) <= 5
    assert int(shown[2]) * 3600 + int(shown[3]) * 60 + int(shown[4]) >= 19


def test_state_survives_flattening() -> None:
    state = {"a": [1, 2.5, None, "x", True], 7: (torch.arange(3), {"b": torch.tensor(0.1)}), "big": 2**100, "": {}}
    tree, tensors = flatten_state(state)
    again = unflatten_state(json.loads(json.dumps(tree)), from_bytes(to_bytes(tensors)))
    assert list(again) == list(state)
    assert again["a"] == state["a"]
    assert again["big"] == 2**100
    assert isinstance(again[7], tuple)
    assert torch.equal(again[7][0], torch.arange(3))
    assert torch.equal(again[7][1]["b"], torch.tensor(0.1))
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)  # the layout comes back, not only the numbers
    tree, tensors = flatten_state([last, last[:, :1]])
    for before, after in zip([last, last[:, :1]], unflatten_state(tree, from_bytes(to_bytes(tensors))), strict=True):
        assert torch.equal(after, before)
        assert after.stride() == before.stride()
    with pytest.raises(TypeError, match=r"state\.x: a object has no place"):
        flatten_state({"x": object()})


def _renders() -> bool:
    try:
        gl.choose()
    except pv.InputError:
        return False
    return True
