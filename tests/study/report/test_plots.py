"""Plots of few and of many settings, as they are laid out: nothing is cut off, nothing looks alike."""

from __future__ import annotations

from itertools import islice, product
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from playvirtual.study.report import learning_curves, plots
from playvirtual.study.report.plots import labels
from playvirtual.study.report.records import collect
from playvirtual.study.report.sections import Section, Setting, sections
from playvirtual.study.report.tables import score_tables
from tests.study.untrained import write_run

LONG = "playvirtual, updates_per_step = 0.25, learning_rate = 0.0005"


def test_a_long_name_is_wrapped_between_its_parts_and_shortened_in_the_middle() -> None:
    assert labels(["spr", LONG]) == ["spr", "playvirtual,\nupdates_per_step = 0.25,\nlearning_rate = 0.0005"]
    (shown,) = labels(["a" * 80 + "b" * 80])
    assert shown.replace("\n", "") == "a" * 68 + "…" + "b" * 67  # 4 lines of 34 characters
    assert labels(["M = $x$\x00"]) == [r"M = \$x\$"]


def test_names_that_would_look_alike_are_numbered() -> None:
    first, second = labels(["a" * 80 + middle + "b" * 80 for middle in "xy"])
    assert first.endswith("b (1)")
    assert second.endswith("b (2)")


def section_of(root: Path, count: int) -> Section:
    """`count` settings of two seeds on a task, with names that are long and begin alike."""
    for score, (batch, rate) in enumerate(islice(product(range(8, 16), (0.0001, 0.0002, 0.0003, 0.0004)), count)):
        for seed in (1, 2):
            options = {"batch_size": batch, "learning_rate": rate, "updates_per_step": 2, "lambda_cyc_max": 0.5 + score}
            path = root / f"{score}-{seed}"
            write_run(path, "toy/catch", "playvirtual-every-step", seed, float(score + seed), **options)
            lines = [f'{{"step": {step}, "mean": {score * step + seed}}}\n' for step in (10, 20, 20000)]
            (path / "evaluations.jsonl").write_text("".join(lines))
    (section,) = sections(collect([root])[0])
    return section


def figures(section: Section) -> list[Figure | None]:
    settings = section.compared[0]
    estimates = {
        name: {s: section.estimate(statistic, s) for s in settings}
        for name, statistic in score_tables.STATISTICS.items()
    }
    compared = score_tables.pairs(section)
    return [
        learning_curves.curve_plot(section),
        plots.interval_plot(section, estimates),
        plots.profile_plot(section),
        *([plots.improvement_plot(compared, section)] if compared else []),
    ]


@pytest.mark.parametrize(
    "count", [1, 3, pytest.param(22, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.slow)]
)
def test_all_text_of_a_plot_lies_within_it(count: int, tmp_path: Path) -> None:
    section = section_of(tmp_path, count)
    with matplotlib.rc_context(plots.STYLE):
        for figure in figures(section):
            assert figure is not None
            figure.draw_without_rendering()
            width, height = figure.bbox.size
            for axes in figure.axes:
                for text in (axes.title, *axes.get_yticklabels()):
                    box = text.get_window_extent()
                    assert -1 <= box.x0 <= box.x1 <= width + 1, text.get_text()
            for legend in figure.legends:
                box = legend.get_window_extent()
                assert -1 <= box.x0 <= box.x1 <= width + 1
                assert box.y1 <= height + 1
                assert all(box.y0 >= axes.get_window_extent().y1 - 1 for axes in figure.axes)
                assert len({text.get_text() for text in legend.get_texts()}) == count
            plt.close(figure)


def test_methods_from_outside_have_lines_of_their_own() -> None:
    names = ("playvirtual", "mine", "yours")
    settings = [Setting(rank, name, name, "paper", ()) for rank, name in enumerate(names)]
    look = plots.Look(settings)
    assert look.colour[settings[0]] == plots.method_colour("playvirtual")
    assert len({(look.colour[s], look.dash[s]) for s in settings}) == 3


def test_no_two_of_many_settings_have_the_same_line(tmp_path: Path) -> None:
    section = section_of(tmp_path, 25)
    look = plots.Look(list(section.runs))
    assert len({(look.colour[s], look.dash[s]) for s in section.runs}) == 25
