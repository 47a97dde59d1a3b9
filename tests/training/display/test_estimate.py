"""The estimate of a run's time: what it is made of, and that measuring it changes nothing of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.training.display import estimate
from playvirtual.training.display.estimate import Estimate, estimate_lines, is_worth_measuring
from playvirtual.training.display.progress import Pace, TimeLeft, time_left

CPU = torch.device("cpu")
KNOWN = Estimate(random_step=0.001, acting_step=0.002, update=0.1)


def test_random_play_and_learning_are_added_up() -> None:
    config = build("toy/catch", steps=1_500, learning_starts=500, updates_per_step=0.5)
    assert KNOWN.learning_step(config) == pytest.approx(0.052)
    assert KNOWN.seconds(config) == pytest.approx(500 * 0.001 + 1_000 * 0.052)
    assert KNOWN.seconds(config, step=1_400) == pytest.approx(100 * 0.052)


def test_environment_steps_are_counted_as_agent_steps() -> None:
    config = build("toy/reach", step_unit="environment", action_repeat=4, steps=4_000, learning_starts=500)
    assert KNOWN.seconds(config) == pytest.approx(500 * 0.001 + 500 * 0.102)


def test_a_run_that_ends_in_random_play_has_no_learning_steps() -> None:
    config = build("toy/catch", steps=2_000, learning_starts=5_000, updates_per_step=0)
    (line,) = estimate_lines(KNOWN, config, CPU)
    assert "without the evaluations: 2,000 random steps at 1,000/s; measured" in line
    assert KNOWN.seconds(config) == pytest.approx(2.0)


def test_more_than_a_day_gets_advice() -> None:
    short, long = (build("toy/catch", steps=steps, updates_per_step=1) for steps in (2_000, 1_000_000))
    (line,) = estimate_lines(KNOWN, short, CPU)
    assert "500 random steps at 1,000/s, then 1,500 learning steps at 9.8/s" in line
    said, advice = estimate_lines(KNOWN, long, CPU)
    assert said.startswith("estimate: about 28.3 h on this CPU")
    assert advice.endswith("fewer --steps than 1,000,000, fewer --updates-per-step than 1, a GPU")


def test_a_short_run_and_one_whose_updates_are_compiled_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = (build("toy/catch", compile=mode) for mode in ("off", "full"))
    assert [is_worth_measuring(plain, steps) for steps in (999, 1_000)] == [False, True]
    assert is_worth_measuring(compiled, 1_000)  # on the CPU it is not compiled
    monkeypatch.setattr(estimate, "resolve_device", lambda name: torch.device("cuda"))
    assert [is_worth_measuring(config, 1_000) for config in (plain, compiled)] == [True, False]


@pytest.mark.slow(seconds=6)
def test_measuring_changes_no_number_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"steps": 1_000, "learning_starts": 970, "K": 2, "eval_episodes": 2, "eval_every": 0, "device": "cpu"}
    for name, quiet in (("told", False), ("quiet", True)):
        pv.train("toy/catch", run_dir=tmp_path / name, quiet=quiet, **options)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("estimate: about ") == 1
    for log in ("metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "told" / log).read_bytes() == (tmp_path / "quiet" / log).read_bytes()


def test_the_time_left_is_never_told_from_random_play() -> None:
    now = 0.0
    left = TimeLeft(10_000, 0, Pace(1_000, seconds_per_step=0.5), now=lambda: now)
    now = 1.0
    assert left(500) == (500.0, pytest.approx(1.0 + 9_000 * 0.5))  # 500 steps a second so far
    now = 2.0
    left(1_000)
    now = 3.0
    assert left(1_002)[1] == pytest.approx(8_998 * 0.5)  # learning has begun: still as measured
    now = 23.0
    rate, seconds = left(1_022)
    assert rate == pytest.approx(1.0)  # the 20 seconds since, without those of random play
    assert seconds == pytest.approx(8_978)


def test_without_a_measurement_the_time_left_is_unknown_until_learning_begins() -> None:
    now = 0.0
    left = TimeLeft(10_000, 0, Pace(1_000), now=lambda: now)
    now = 1.0
    assert left(500) == (500.0, None)
    assert (time_left(None), time_left(3_661)) == ("-:--:--", "1:01:01")
    left(1_001)
    now = 2.0
    assert left(1_011)[1] == pytest.approx(8_989 / 10)
