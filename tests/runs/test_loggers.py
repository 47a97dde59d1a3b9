"""TensorBoard and W&B show what the run folder has, once, however often the run was interrupted."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.loggers import KINDS, find_spec, parse

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 120,
    "learning_starts": 40,
    "K": 2,
    "eval_episodes": 3,
    "eval_every": 60,
    "log_every": 10,
    "checkpoint_every": 25,
    "quiet": True,
}


def test_a_misspelled_logger_is_refused_with_the_name_that_was_meant() -> None:
    assert parse("none") == parse("") == ()
    with pytest.raises(pv.InputError, match=r"log: 'tensorbord' is not known; did you mean 'tensorboard'\?"):
        parse("tensorbord")


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    if find_spec(name) is not None:
        assert parse(name) == (name,)
        return
    with pytest.raises(pv.InputError, match=rf"in a clone: pip install -e '\.\[{name}\]'"):
        pv.train("toy/catch", run_dir=tmp_path / "run", log=name, **CATCH)
    assert not (tmp_path / "run").exists()


def killed_and_resumed(path: Path, log: str, at: int = 92) -> None:
    """A run whose newest checkpoint, if it has one, is 17 steps behind what its loggers have shown."""
    from playvirtual.training.runner import run

    class Dies:
        def begin(self, done: int, pace: object = None) -> None:
            pass

        def step(self, done: int, note: str) -> None:
            if done == at:
                raise ConnectionError  # any unexpected error

        def evaluation(self, ended: int, episodes: int, steps: int) -> None:
            pass

        def close(self) -> None:
            pass

    config = pv.build("toy/catch", **{k: v for k, v in CATCH.items() if k != "quiet"})
    with pytest.raises(pv.RunError, match=r"^ConnectionError; "):
        run(config, path, Dies(), log=parse(log))
    assert json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == at // 10 * 10
    pv.resume(path, log=log, quiet=True)


def told(path: Path, name: str, key: str) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]
    return [(line["step"], line[key]) for line in lines if line.get(key) is not None]


@pytest.mark.parametrize("at", [92, 21], ids=["killed", "killed before its first checkpoint"])
def test_tensorboard_shows_every_point_once(at: int, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed_and_resumed(tmp_path / "run", "tensorboard", at)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for tag, journal, key in (
        ("train/loss", "metrics", "loss"),
        ("train/return", "metrics", "return"),
        ("evaluation/mean", "evaluations", "mean"),
        ("time/shares/update", "metrics", "step"),
    ):
        shown = [(e.step, e.value) for e in events.Scalars(tag)]
        expected = told(tmp_path / "run", journal, key)
        assert [step for step, _ in shown] == [step for step, _ in expected], tag
        if journal != "metrics" or key != "step":
            assert all(math.isclose(a[1], b[1], rel_tol=1e-6) for a, b in zip(shown, expected, strict=True))


def test_wandb_works_offline_and_logs_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    killed_and_resumed(tmp_path / "run", "wandb")
    record = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert record["logged"] == {"train": 120, "time": 120, "evaluation": 120}
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 2


@pytest.mark.slow
def test_loggers_leave_the_run_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    before = signal.getsignal(signal.SIGTERM)
    pv.train("toy/catch", run_dir=tmp_path / "a", **CATCH)
    pv.train("toy/catch", run_dir=tmp_path / "b", log="tensorboard", **CATCH)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert signal.getsignal(signal.SIGTERM) == before


# A package of wandb's shape that stops working where FAILS says, as the real one does without a network or a login.
BROKEN = """
import os

class UsageError(Exception):
    pass

def fail(where):
    if os.environ["FAILS"] == where:
        raise UsageError("no API key\\nconfigured")

class Run:
    told = 0

    def define_metric(self, *args, **kwargs):
        pass

    def log(self, values):
        Run.told += 1
        if Run.told == 3:
            fail("log")

    def finish(self):
        fail("finish")

def init(**kwargs):
    fail("init")
    return Run()
"""


@pytest.mark.parametrize(("where", "told"), [("init", 0), ("log", 3), ("finish", 26)])
def test_a_logger_that_fails_is_named_once_and_the_run_continues(
    where: str, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 lines of metrics and times, and two evaluations."""
    (tmp_path / "packages" / "wandb").mkdir(parents=True)
    (tmp_path / "packages" / "wandb" / "__init__.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("FAILS", where)
    run = pv.train("toy/catch", run_dir=tmp_path / "run", log="wandb", **CATCH)
    assert sys.modules.pop("wandb").Run.told == told
    assert capsys.readouterr().err.splitlines() == [
        "playvirtual: wandb failed; the run continues without it (UsageError: no API key configured)"
    ]
    assert told_steps(run.path) == list(range(10, 121, 10))


def test_a_file_in_the_place_of_a_loggers_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    config = pv.build("toy/catch", **{k: v for k, v in CATCH.items() if k != "quiet"})
    RunFolder.create(tmp_path / "run").write_config(config)
    (tmp_path / "run" / "tensorboard").write_text("a file where TensorBoard wants its folder")
    pv.resume(tmp_path / "run", log="tensorboard", quiet=True)
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("playvirtual: tensorboard failed; the run continues without it (")
    assert told_steps(tmp_path / "run") == list(range(10, 121, 10))


def told_steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


# A package of wandb's shape that remembers what it is told.
REMEMBERING = """
told, inits = [], []

class Video:
    def __init__(self, path, format):
        self.path, self.format = path, format

class Run:
    def define_metric(self, *args, **kwargs):
        pass

    def log(self, values):
        told.append(values)

    def finish(self):
        pass

def init(**kwargs):
    inits.append(kwargs)
    return Run()
"""


def test_loggers_have_hyperparameters_videos_and_the_projects_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (tmp_path / "packages" / "wandb").mkdir(parents=True)
    (tmp_path / "packages" / "wandb" / "__init__.py").write_text(REMEMBERING)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    options = {**CATCH, "updates_per_step": 0.25, "video_at_evaluation": True}
    run = pv.train("toy/catch", run_dir=tmp_path / "run", log="tensorboard,wandb", **options)

    wandb = sys.modules.pop("wandb")
    (init,) = wandb.inits
    assert (init["project"], init["group"], init["config"]["objective"]["K"]) == ("mine", "toy/catch playvirtual", 2)
    assert init["tags"] == ["playvirtual", "toy/catch", "playvirtual", "paper"]
    shown = [(values["step"], Path(values["evaluation/video"].path)) for values in wandb.told if len(values) == 2]
    assert shown == [(step, next((run.path / "videos").glob(f"step-{step:09d}.*"))) for step in (60, 120)]

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    session = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    hparams = session.session_start_info.hparams
    assert hparams["K"].number_value == 2
    assert hparams["task"].string_value == "toy/catch"
    videos = events.Images("evaluation/video")
    assert [(video.step, video.encoded_image_string[:4]) for video in videos] == [(60, b"GIF8"), (120, b"GIF8")]
    assert b"learning_starts = 40" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
