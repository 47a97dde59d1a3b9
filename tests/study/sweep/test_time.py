"""The times that a plan estimates, worked out by hand from logs of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from playvirtual.config.record import to_dict
from playvirtual.study.sweep.experiments import experiment, suite
from playvirtual.study.sweep.grids import Job, jobs
from playvirtual.study.sweep.plan import plan
from playvirtual.study.sweep.time import TimeLeft, note

STEPS, MIN_SIZE = 1000, 100


def grid(out: Path, seeds: int = 2) -> list[Job]:
    options = {"steps": STEPS, "learning_starts": MIN_SIZE}
    return jobs(experiment("toy"), suite("toy/catch"), seeds, out, options=options)


def write(job: Job, times: Sequence[tuple[int, float]], *, finished: bool) -> None:
    """A run folder with these lines (step, seconds) of time."""
    job.path.mkdir(parents=True)
    (job.path / "config.json").write_text(json.dumps(to_dict(job.config)))
    lines = [json.dumps({"step": step, "seconds": seconds}) + "\n" for step, seconds in times]
    (job.path / "timing.jsonl").write_text("".join(lines))
    if finished:
        (job.path / "evaluations.jsonl").write_text(json.dumps({"step": STEPS, "mean": 0.0, "returns": [0.0]}) + "\n")


def row(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if f"  {label}  " in line).rstrip()


def test_without_a_run_the_time_is_unknown(tmp_path: Path) -> None:
    text = plan(grid(tmp_path), 2)
    assert row(text, "RL").endswith("unknown")
    assert text.endswith("6 to do; time unknown for toy/catch: no run of it here has been measured")


def test_every_row_has_its_own_rate_and_the_rest_that_of_the_others(tmp_path: Path) -> None:
    found = grid(tmp_path)
    of = {(job.config.method, job.config.seed): job for job in found}
    write(of["rl", 1], [(STEPS, 10.0)], finished=True)
    write(of["spr", 1], [(STEPS, 30.0)], finished=True)
    text = plan(found, 2)
    assert row(text, "RL").endswith("10 s, finished runs")
    assert row(text, "SPR").endswith("30 s, finished runs")
    assert row(text, "PlayVirtual").endswith("20 s, other rows")
    # RL and SPR once more, PlayVirtual twice: 10 + 30 + 2 × 20 seconds, two at a time.
    assert text.endswith("4 to do, about 40 s with 2 at a time, measured from finished runs, other rows")


def test_a_finished_run_counts_as_a_whole_with_its_start(tmp_path: Path) -> None:
    found = grid(tmp_path)
    write(found[0], [(STEPS, 10.0)], finished=True)
    note(found[0].path, 15.0)
    assert row(plan(found, 1), "RL").endswith("15 s, finished runs")


def test_a_started_run_counts_by_its_rate_once_it_learns(tmp_path: Path) -> None:
    found = grid(tmp_path, seeds=1)
    # 5 seconds of compiling at the first update, then 100 steps in 4 seconds.
    write(found[0], [(50, 0.1), (150, 5.2), (250, 9.2)], finished=False)
    text = plan(found[:1], 1)
    assert row(text, "RL").endswith("40 s, started runs")
    assert text.endswith("1 to do, about 30 s with 1 at a time, measured from started runs")  # 750 steps are left


def test_a_run_that_does_not_learn_yet_tells_nothing(tmp_path: Path) -> None:
    found = grid(tmp_path, seeds=1)
    write(found[0], [(50, 0.1), (90, 0.2)], finished=False)
    assert row(plan(found, 1), "RL").endswith("unknown")


def test_the_time_left_of_a_running_sweep(tmp_path: Path) -> None:
    """RL took 10 s; SPR runs at 0.04 s a step with 750 left; PlayVirtual has the mean of both, 0.025 s a step."""
    of = {job.config.method: job for job in grid(tmp_path, seeds=1)}
    clock = iter([0.0, 0.0, 1.0, 20.0, 20.0, 40.0, 40.0])
    left = TimeLeft([], now=lambda: next(clock))
    assert left.text([], list(of.values())) == ""
    write(of["rl"], [(STEPS, 10.0)], finished=True)
    write(of["spr"], [(150, 5.2), (250, 9.2)], finished=False)
    left.ended(of["rl"])
    assert left.text([of["spr"]], [of["playvirtual"]]) == ""  # within seconds nothing is read again
    assert left.text([of["spr"]], [of["playvirtual"]]) == "about 55 s left"
    assert left.text([of["spr"], of["playvirtual"]], []) == "about 30 s left"  # both at a time: as long as the longer


def test_the_time_left_says_when_a_task_is_unknown(tmp_path: Path) -> None:
    known = grid(tmp_path, seeds=1)[0]
    other = jobs(experiment("toy"), suite("toy/reach"), 1, tmp_path, options={"steps": STEPS})[0]
    write(known, [(150, 5.2), (250, 9.2)], finished=False)
    assert TimeLeft([]).text([known], [other]) == "at least 30 s left"
    note(known.path, 50.0)  # it ended early, after 250 steps
    left = TimeLeft([known])
    assert left.text([], [known]) == "about 2 min left"  # 750 steps at 0.2 s each
