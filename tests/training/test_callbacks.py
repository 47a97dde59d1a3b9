"""Callbacks see every step, evaluation and checkpoint once, change nothing, and can end a run."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.runs import checkpoint, stopped
from tests.training.equal_runs import same
from tests.training.interrupting import CATCH as OPTIONS

CATCH: dict[str, Any] = {
    **OPTIONS,
    "steps": 100,
    "learning_starts": 40,
    "eval_every": 50,
    "quiet": True,
    "updates_per_step": 0.25,
}


class Notes(pv.Callback):
    """Writes down what it is told, and acts at one event."""

    def __init__(self, act: Any = None, method: str = "", step: int = -1) -> None:
        self.told: list[tuple[str, int]] = []
        self.events: list[Any] = []
        self._act, self._at = act, (method, step)

    def _note(self, method: str, event: Any) -> None:
        self.told.append((method, event.step))
        self.events.append(event)
        if self._at == (method, event.step):
            self._act()

    def on_step(self, event: pv.StepEvent) -> None:
        self._note("on_step", event)

    def on_evaluation(self, event: pv.EvaluationEvent) -> None:
        self._note("on_evaluation", event)

    def on_checkpoint(self, event: pv.CheckpointEvent) -> None:
        self._note("on_checkpoint", event)

    def steps(self, method: str) -> list[int]:
        return [step for told, step in self.told if told == method]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without callbacks, which tests only read."""
    return pv.train("toy/catch", run_dir=tmp_path_factory.mktemp("whole") / "run", **CATCH).path


def test_callbacks_are_told_everything_and_change_nothing(whole: Path, tmp_path: Path) -> None:
    notes = Notes()
    run = pv.train("toy/catch", run_dir=tmp_path / "run", callbacks=[notes], **CATCH)
    same(run.path, whole)
    assert notes.steps("on_step") == list(range(1, 101))
    assert notes.steps("on_evaluation") == [50, 100]
    assert notes.steps("on_checkpoint") == [40, 50, 80, 100]
    assert notes.told[-3:] == [("on_step", 100), ("on_checkpoint", 100), ("on_evaluation", 100)]
    told = [event for event in notes.events if isinstance(event, pv.StepEvent)]
    metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [event.metrics for event in told if event.metrics is not None] == metrics
    ended = [event.episode_return for event in told if event.episode_return is not None]
    assert len(ended) == metrics[-1]["episodes"]
    assert set(ended) <= {-1.0, 1.0}
    assert (told[-1].updates, told[-1].config, told[-1].run) == (metrics[-1]["updates"], run.config, run.path)
    last = notes.events[-1]
    assert (last.score, last.returns, last.video) == (run.score, run.returns, None)


@pytest.mark.parametrize(("method", "step"), [("on_step", 63), ("on_evaluation", 50)])
def test_an_exception_ends_the_run_with_a_checkpoint_of_its_step(
    method: str, step: int, whole: Path, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by zero")

    notes, rest = Notes(fail, method, step), Notes()
    with pytest.raises(pv.RunError) as caught:
        pv.train("toy/catch", run_dir=tmp_path / "run", callbacks=[notes], **CATCH)
    text = str(caught.value)
    assert text.startswith(f"callbacks: Notes.{method} raised ZeroDivisionError: by zero ({__file__}:")
    assert f"in step {step}; last good checkpoint: {tmp_path}/run/checkpoints/step-{step:09d}; to resume" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    pv.resume(tmp_path / "run", quiet=True, callbacks=[rest])
    same(tmp_path / "run", whole)
    assert notes.steps("on_step") + rest.steps("on_step") == list(range(1, 101))
    assert notes.steps("on_evaluation") + rest.steps("on_evaluation") == [50, 100]


def test_a_callback_stops_the_run_early(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        raise pv.StopTraining("enough")

    run = pv.train("toy/catch", run_dir=tmp_path / "run", callbacks=[Notes(stop, "on_step", 63)], **CATCH)
    assert (run.stopped, len(run.returns)) == ("enough", 4)
    assert stopped.read(run.path) == (63, "enough")
    assert checkpoint.newest(run.path).name == "step-000000063"
    assert pv.train("toy/catch", run_dir=run.path, resume=True, **CATCH).returns == run.returns
    assert f"{run.path} was stopped at step 63 (enough)" in capsys.readouterr().err
    (run.path / "stopped.json").unlink()
    pv.resume(run.path, quiet=True)
    assert (run.path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    steps = [json.loads(line)["step"] for line in (run.path / "evaluations.jsonl").read_text().splitlines()]
    assert steps == [50, 63, 100]


def test_a_signal_in_a_callback_stops_after_it_and_the_rest_is_told_later(whole: Path, tmp_path: Path) -> None:
    notes, rest = Notes(lambda: signal.raise_signal(signal.SIGTERM), "on_step", 71), Notes()
    with pytest.raises(pv.Interrupted):
        pv.train("toy/catch", run_dir=tmp_path / "run", callbacks=[notes], **CATCH)
    pv.resume(tmp_path / "run", quiet=True, callbacks=[rest])
    same(tmp_path / "run", whole)
    assert notes.steps("on_step") + rest.steps("on_step") == list(range(1, 101))
    assert rest.events[0].episode_return is None or rest.events[0].episode_return in (-1.0, 1.0)


class Typo:
    def on_eval(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([print], "callbacks: builtin_function_or_method has none of the methods; allowed: on_step, on_evaluation, "),
        ([pv.Callback], r"callbacks: Callback is a class; allowed: an object of it, Callback\(\)"),
        ([Typo()], r"callbacks: Typo: 'on_eval' is not known; did you mean 'on_evaluation'\?"),
        (7, "callbacks: 7 is not allowed; allowed: a list of them"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_written(callbacks: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(pv.InputError, match=said):
        pv.train("toy/catch", run_dir=tmp_path / "run", callbacks=callbacks, **CATCH)
    assert not (tmp_path / "run").exists()
