"""One of a thing is not several."""

from __future__ import annotations

from pathlib import Path

import pytest

from playvirtual.presets import build
from playvirtual.study.experiments import experiment, suite
from playvirtual.study.grids import jobs
from playvirtual.study.summary import run_summary
from playvirtual.study.sweep import Result
from playvirtual.study.sweep_display import PlainLines, outcome
from playvirtual.study.sweep_plan import plan


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
