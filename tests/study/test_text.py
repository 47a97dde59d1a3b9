"""Counts and durations as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from playvirtual.config.build import build
from playvirtual.messages import duration
from playvirtual.study.scores import run_summary
from playvirtual.study.sweep.display import PlainLines, outcome
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import jobs
from playvirtual.study.sweep.plan import plan
from playvirtual.study.sweep.sweep import Result


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42.4, "42 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (12_600.0, "3.5 h"),
        (181_440.0, "2.1 d"),
    ],
)
def test_a_duration_has_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "word"), [(1, "run"), (2, "runs")])
def test_a_sweep_counts_its_runs(count: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = jobs(experiment("toy"), suite("toy/catch"), 1, tmp_path)[:count]
    assert f"\n{count} {word}, 0 finished; {count} to do" in plan(planned, 1)
    lines = PlainLines()
    lines.begin(count, 0)
    lines.close()
    said = capsys.readouterr().out
    assert f"sweep: {count} {word}, 0 finished before" in said
    assert f"sweep: 0/{count} {word} finished" in said
    failed = Result(failed={job.path: "broken" for job in planned})
    assert f"\n{count} {word} failed; the same command tries {'it' if count == 1 else 'them'} again: x" in outcome(
        failed, "x"
    )
    assert outcome(Result(waiting=planned, stopped_by=2), "x").startswith(f"stopped with {count} {word} to go;")


def test_a_score_counts_its_episodes() -> None:
    assert run_summary(build("toy/catch"), [1.0]).endswith("over 1 episode")
    assert run_summary(build("toy/catch"), [1.0, 0.0]).endswith("over 2 episodes")
