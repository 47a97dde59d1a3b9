"""Learning curves say what they show, keep unfinished runs apart, and have losses beside returns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from playvirtual.errors import InputError
from playvirtual.runs import stopped
from playvirtual.study import grid_record
from playvirtual.study.report import learning_curves
from playvirtual.study.report.records import collect
from playvirtual.study.report.report import report
from playvirtual.study.report.sections import Section, sections
from playvirtual.study.sweep.grids import planned_jobs, record_labels
from tests.study.untrained import write_run

STEPS = 8000  # the toy's


def write(
    run: Path,
    method: str,
    seed: int,
    evaluations: Sequence[tuple[int, float]],
    *,
    task: str = "toy/catch",
    **options: object,
) -> Path:
    """A run with these evaluations, and metrics at 1000 and 2000 steps whose returns are 10 higher."""
    write_run(run, task, method, seed, 0.0, **options)
    lines = [json.dumps({"step": step, "mean": mean, "returns": [mean]}) + "\n" for step, mean in evaluations]
    (run / "evaluations.jsonl").write_text("".join(lines))
    pred, cyc = (0.0 if method == "rl" else 1.0), (0.5 if method == "playvirtual" else 0.0)
    metrics = [
        {
            "step": step,
            "return": 10.0 + step / 1000,
            "loss_rl": 2.0,
            "loss_pred": pred,
            "loss_cyc": cyc,
            "lambda_cyc": 0.1,
        }
        for step in (1000, 2000)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return run


def only_section(root: Path) -> Section:
    (section,) = sections(collect([root])[0])
    return section


def whole(offset: float = 0.0) -> list[tuple[int, float]]:
    return [(2000, offset), (4000, offset + 1), (STEPS, offset + 2)]


def test_a_panel_shows_evaluations_or_training_episodes_and_says_which(tmp_path: Path) -> None:
    write(tmp_path / "a", "spr", 1, whole())
    write(tmp_path / "b", "spr", 2, [(STEPS, 2.0)])  # an evaluation at the end alone
    write(tmp_path / "c", "playvirtual", 1, whole(), task="toy/reach")
    section = only_section(tmp_path)
    assert [learning_curves.panel_shows(section, task) for task in ("toy/catch", "toy/reach")] == [
        "training",
        "evaluations",
    ]
    figure = learning_curves.curve_plot(section)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["toy/catch (training)", "toy/reach"]
    (catch,), (reach,) = (axes.lines for axes in figure.axes)
    assert [list(map(float, line.get_ydata())) for line in (catch, reach)] == [[11.0, 12.0], [0.0, 1.0, 2.0]]
    assert "in panels that say so, returns of training episodes" in learning_curves.curves_caption(section)
    plt.close(figure)


def test_runs_that_are_not_finished_are_lines_of_their_own(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path / f"a{seed}", "spr", seed, whole(seed))
    write(tmp_path / "b", "spr", 3, whole(100.0)[:2])
    stopped = write(tmp_path / "c", "spr", 4, whole(200.0)[:2])
    (stopped / "stopped.json").write_text(json.dumps({"step": 4000, "reason": "enough"}))
    section = only_section(tmp_path)
    figure = learning_curves.curve_plot(section)
    assert figure is not None
    mean, *others = figure.axes[0].lines
    assert list(map(float, mean.get_ydata())) == [1.5, 2.5, 3.5]
    assert [(line.get_marker(), float(line.get_ydata()[-1])) for line in others] == [
        ("None", 101.0),
        ("o", 101.0),
        ("None", 201.0),
        ("x", 201.0),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["spr", "not finished", "stopped early"]
    plt.close(figure)


def test_an_early_stop_is_listed_and_in_no_mean(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a", "spr", 1, whole())
    early = write(tmp_path / "runs" / "b", "spr", 2, whole(50.0)[:2])
    (early / "stopped.json").write_text(json.dumps({"step": 4000, "reason": "enough"}))
    written = report([tmp_path / "runs"], tmp_path / "out")
    assert written.summary == "1 finished run of 1 task, 1 stopped early"
    tables = tmp_path / "out" / "tables"
    assert (tables / "toy-scores.csv").read_text().splitlines()[1] == "catch,2.00 (1)"
    row = (tables / "toy-stopped.csv").read_text().splitlines()[1]
    assert row == 'toy/catch,spr,2,"4,000","8,000",51.00,enough'
    page = written.page.read_text()
    assert "Runs that were stopped early (1)" in page
    assert "Runs that are not finished" not in page
    assert "51.00 (stopped at step 4,000)" in page


def test_a_section_without_a_finished_run_has_curves(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a", "spr", 1, whole()[:2])
    page = report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert "No run of this section is finished yet." in page
    assert (tmp_path / "out" / "plots" / "toy-curves.png").exists()
    assert (tmp_path / "out" / "plots" / "toy-losses.png").exists()


def test_losses_stand_beside_returns_and_only_of_methods_that_have_them(tmp_path: Path) -> None:
    """RL predicts nothing, and SPR has no cycles: their logs have zeros, which are no losses."""
    write(tmp_path / "r", "rl", 1, whole())
    write(tmp_path / "a", "spr", 1, whole())
    write(tmp_path / "b", "playvirtual", 1, whole())
    figure = learning_curves.loss_plot(only_section(tmp_path))
    assert figure is not None
    drawn = {axes.get_title(): len(axes.lines) for axes in figure.axes}
    assert drawn == {
        "return, evaluations": 3,
        "RL loss": 3,
        "prediction loss, Eq. 2": 2,
        "cycle loss, Eq. 4": 1,
        "λ_cyc": 1,
    }
    plt.close(figure)


def test_losses_of_untrained_networks_do_not_set_the_scale(tmp_path: Path) -> None:
    """The first of 101 points is 16, all others lie between 0.1 and 0.3."""
    run = write(tmp_path / "a", "spr", 1, whole())
    values = [16.0, *(0.1 + 0.2 * i / 99 for i in range(100))]
    lines = [json.dumps({"step": 20 * i, "return": 0.0, "loss_pred": value}) for i, value in enumerate(values)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    figure = learning_curves.loss_plot(only_section(tmp_path))
    assert figure is not None
    (axes,) = (axes for axes in figure.axes if axes.get_title() == "prediction loss, Eq. 2")
    low, high = axes.get_ylim()
    assert 0.09 < low < 0.12
    assert 0.3 < high < 0.32
    plt.close(figure)


def test_one_line_of_metrics_makes_no_plot(tmp_path: Path) -> None:
    metrics = write(tmp_path / "a", "spr", 1, [(STEPS, 2.0)]) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    assert learning_curves.curve_plot(only_section(tmp_path)) is None
    assert learning_curves.loss_plot(only_section(tmp_path)) is None


GRID = """
title = "How far ahead"
[[row]]
label = "baseline"
method = "spr"
[[row]]
label = "one step"
[row.options]
K = 1
"""


def test_a_grids_title_and_labels_are_those_of_its_report(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GRID)
    out = tmp_path / "runs"
    common = {"rows": None, "suite_names": "toy/catch", "seeds": 1, "out": out, "preset": None, "options": {}}
    jobs = planned_jobs(str(tmp_path / "mine.toml"), **common)  # type: ignore[arg-type]
    for job in jobs:
        write(job.path, job.config.method, 1, whole(), **{k: v for k, v in job.options.items() if k != "seed"})
    record_labels("toy", out, jobs)  # one of the paper's, whose rows have names already
    assert not (out / "grids.json").exists()
    record_labels(str(tmp_path / "mine.toml"), out, jobs)
    page = report([out], tmp_path / "report").page.read_text()
    assert "<h1>How far ahead</h1>" in page
    header = (tmp_path / "report" / "tables" / "toy-scores.csv").read_text().splitlines()[0]
    assert header == "task,baseline,one step"
    rows = (tmp_path / "report" / "tables" / "toy-rows.csv").read_text().splitlines()[1:]
    assert rows == ["baseline,spr", 'one step,"playvirtual, K = 1"']
    # Another grid that calls the same run otherwise: its setting has the name of its options again.
    grid_record.write(out, "other", "Other", [(jobs[1].path, "short")])
    assert [setting.name for setting in only_section(out).runs] == ["baseline", "playvirtual, K = 1"]


def test_a_change_that_some_methods_set_themselves_is_not_said_to_be_of_every_run(tmp_path: Path) -> None:
    """SPR has M = 0 of its own: M = 4 is of PlayVirtual alone, the warm-up of both."""
    out = tmp_path / "runs"
    write(out / "toy-catch" / "spr" / "seed-1", "spr", 1, whole(), i_end=9)
    few = write(out / "toy-catch" / "few" / "seed-1", "playvirtual", 1, whole(), i_end=9, M="4")
    page = report([out], tmp_path / "report").page.read_text()
    both = "Changed from the defaults in every run of this section: i_end = 9"
    assert f"{both}; where the method of a run does not set it: M = 4.<" in page
    grid_record.write(out, "mine", "Mine", [(few, "four")])
    assert only_section(out).grid_rows == {"four": "playvirtual, M = 4"}
    write(tmp_path / "c", "playvirtual-nd", 1, whole(), i_end=9, M="4")
    page = report([few, tmp_path / "c"], tmp_path / "report").page.read_text()
    assert "Changed from the defaults in every run of this section: M = 4, i_end = 9.<" in page
    assert "gl: the OpenGL back end" not in page  # no run has recorded one


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[]",
        b'{"a": 5}',
        b'{"a": {"title": 3, "rows": {"toy-catch/spr": "x"}}}',
        b'{"a": {"title": "t", "rows": ["toy-catch/spr"]}}',
        b'{"a": {"title": "t", "rows": {"toy-catch/spr": "two\\nlines"}}}',
    ],
)
def test_a_rotten_grids_file_changes_no_name(content: bytes, tmp_path: Path) -> None:
    write(tmp_path / "toy-catch" / "spr" / "seed-1", "spr", 1, whole())
    (tmp_path / "grids.json").write_bytes(content)
    assert [setting.name for setting in only_section(tmp_path).runs] == ["spr"]


def test_two_settings_of_one_label_keep_their_own_names(tmp_path: Path) -> None:
    paths = [tmp_path / "toy-catch" / name / "seed-1" for name in ("spr", "rl")]
    for path in paths:
        write(path, path.parent.name, 1, whole())
    grid_record.write(tmp_path, "mine", "Mine", [(path, "same") for path in paths])
    assert [setting.name for setting in only_section(tmp_path).runs] == ["rl", "spr"]


@pytest.mark.parametrize("content", ["[]", "{}", '{"step": "x", "reason": "y"}', '{"step": 3, "reason": 4}', "\\"])
def test_a_rotten_record_of_an_early_end_is_named(content: str, tmp_path: Path) -> None:
    run = write(tmp_path / "runs" / "a", "spr", 1, whole()[:2])
    (run / "stopped.json").write_text(content)
    (record,), (problem,) = collect([tmp_path / "runs"])
    assert record.stopped is None
    assert problem.kind == "damaged"
    assert "stopped.json' cannot be read: " in problem.reason
    with pytest.raises(InputError, match=r"^run: .*stopped.json' cannot be read: ") as caught:
        stopped.read(run)
    assert "\n" not in str(caught.value)
