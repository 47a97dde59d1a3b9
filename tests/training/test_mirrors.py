"""TensorBoard and W&B show what the run folder says, once, whatever befell the run."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.training.mirrors import KINDS, find_spec, parse

CATCH: dict[str, Any] = {
    "device": "cpu",
    "steps": 120,
    "min_size": 40,
    "K": 2,
    "episodes": 3,
    "every": 60,
    "log_every": 10,
    "checkpoint_every": 25,
    "quiet": True,
}


def test_names() -> None:
    assert parse("none") == parse("") == ()
    with pytest.raises(pv.InputError, match=r"log: 'tensorbord' is not known; did you mean 'tensorboard'\?"):
        parse("tensorbord")


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    if find_spec(name) is not None:
        assert parse(name) == (name,)
        return
    with pytest.raises(pv.InputError, match=rf"pip install 'playvirtual\[{name}\]'"):
        pv.train("toy/catch", run_dir=tmp_path / "run", log=name, **CATCH)
    assert not (tmp_path / "run").exists()


def killed_and_resumed(path: Path, log: str) -> None:
    """A run whose newest checkpoint lies 17 steps behind what its mirrors have been told."""
    from playvirtual.training.session import run

    class Dies:
        def begin(self, done: int) -> None:
            pass

        def step(self, done: int, note: str) -> None:
            if done == 92:
                raise ConnectionError  # anything that no one expected

        def close(self) -> None:
            pass

    config = pv.build("toy/catch", **{k: v for k, v in CATCH.items() if k != "quiet"})
    with pytest.raises(ConnectionError):
        run(config, path, Dies(), log=parse(log))
    assert json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 90
    pv.resume(path, log=log, quiet=True)


def told(path: Path, name: str, key: str) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]
    return [(line["step"], line[key]) for line in lines if line.get(key) is not None]


def test_tensorboard_shows_every_point_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed_and_resumed(tmp_path / "run", "tensorboard")
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


def test_wandb_works_offline_and_tells_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    killed_and_resumed(tmp_path / "run", "wandb")
    record = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert record["told"] == {"train": 120, "time": 120, "evaluation": 120}
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 2


def test_mirrors_leave_the_run_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    before = signal.getsignal(signal.SIGTERM)
    pv.train("toy/catch", run_dir=tmp_path / "a", **CATCH)
    pv.train("toy/catch", run_dir=tmp_path / "b", log="tensorboard", **CATCH)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert signal.getsignal(signal.SIGTERM) == before
