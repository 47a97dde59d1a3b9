"""Learning curves of a report: returns over steps, and beside them the losses and λ_cyc.

A panel shows evaluations or returns of training episodes, never both, and says which. Runs that are not finished, or
were stopped early, are thin lines of their own with a mark at their end, and part of no mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from playvirtual import files
from playvirtual.runs import jsonl
from playvirtual.study.report.plots import MANY, Look, add_legend, band_opacity, plain
from playvirtual.study.report.records import Curve, Record, thinned, training_curve
from playvirtual.study.report.sections import Section, Setting

MAX_PANELS = 60  # of returns
MAX_TASKS = 6  # whose losses are shown
FEWEST = 3  # evaluations that make a curve
START = 0.05  # of a curve's steps, whose losses, those of networks that have learned nothing, do not set the scale
PANEL = 1.5  # inches, at least, of a panel of losses
LOSS_NAMES = {  # in the order of the columns
    "loss_rl": "RL loss",
    "loss_critic": "critic loss",
    "loss_actor": "actor loss",
    "loss_pred": "prediction loss, Eq. 2",
    "loss_cyc": "cycle loss, Eq. 4",
    "target_spread": "spread of targets",
    "lambda_cyc": "λ_cyc",
}
MARKS = {"unfinished": "o", "stopped": "x"}  # at the end of a run that is not finished, or was stopped early

Shown = Literal["evaluations", "training"]


def panel_shows(section: Section, task: str) -> Shown:
    """What a panel shows: evaluations if every finished run has enough of them for a curve, else training episodes.

    Without a finished run those that are not finished decide.
    """
    finished = [run for tasks in section.runs.values() for run in tasks.get(task, {}).values()]
    runs = finished or [run for run in section.unfinished if run.task == task]
    return "evaluations" if all(len(run.evaluations) >= FEWEST for run in runs) else "training"


def curves_caption(section: Section) -> str:
    """What the curves are: of evaluations, of training episodes, or of each in panels of their own."""
    shown = {panel_shows(section, task) for task in curve_tasks(section)}
    kinds = {
        frozenset({"evaluations"}): "Evaluations.",
        frozenset({"training"}): "Returns of training episodes, which explore: there are too few evaluations.",
    }
    text = kinds.get(
        frozenset(shown), "Evaluations; in panels that say so, returns of training episodes, which explore."
    )
    caption = f"Learning curves: mean over seeds of finished runs, shaded ± one standard deviation. {text}"
    if section.unfinished:
        caption += " Thin lines are single runs that are not finished (circle) or were stopped early (cross)."
    return caption


def curve_tasks(section: Section) -> list[str]:
    """The tasks with a run, those with a finished one first."""
    others = {run.task for run in section.unfinished} - set(section.tasks)
    return [*section.tasks, *sorted(others)]


def curve_plot(section: Section) -> Figure | None:
    """Small multiples: for each task the mean over seeds, the standard deviation around it, and unfinished runs."""
    tasks = curve_tasks(section)[:MAX_PANELS]
    look, drawn = Look(section.settings), False
    columns = min(len(tasks), 4 if len(tasks) > 6 else 3)
    rows = -(-len(tasks) // columns)
    height = 3.2 if columns == 1 else 2.1 if len(look.colour) <= MANY else 2.8
    size = (9.2, 0.55 + height * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, task in zip(panels.flat, tasks, strict=False):
        shown = panel_shows(section, task)
        drawn |= _draw_panel(axes, section, task, look, partial(_returns, shown), bands=True)
        axes.set_title(plain(task) + (" (training)" if shown == "training" else ""))
        _format_steps(axes)
    for axes in panels.flat[len(tasks) :]:
        axes.set_visible(False)
    if not drawn:
        plt.close(figure)
        return None
    figure.supxlabel("steps", fontsize=9)
    add_legend(figure, look, section.settings, _marks(section))
    figure.supylabel("return", fontsize=9, y=0.5 * size[1] / figure.get_figheight())  # beside the panels
    return figure


def loss_plot(section: Section) -> Figure | None:
    """A row per task: its returns, its losses and λ_cyc, each over steps; means over seeds."""
    tasks = curve_tasks(section)[:MAX_TASKS]
    runs = [run for run in section.records if run.task in tasks]
    metrics = {run.path: _metrics(run) for run in runs}
    names = [name for name in LOSS_NAMES if any(name in found for found in metrics.values())]
    if not names:
        return None
    look, columns, some = Look(section.settings), 1 + len(names), False
    size = (max(9.2, PANEL * columns), 0.6 + 1.7 * len(tasks))
    figure, panels = plt.subplots(len(tasks), columns, figsize=size, layout="constrained", squeeze=False)
    for row, task in zip(panels, tasks, strict=True):
        shown = panel_shows(section, task)
        some |= _draw_panel(row[0], section, task, look, partial(_returns, shown))
        row[0].set_ylabel(f"{plain(task)}", fontsize=8)
        row[0].set_title("return, training" if shown == "training" else "return, evaluations", fontsize=8)
        for axes, name in zip(row[1:], names, strict=True):
            drawn = _draw_panel(axes, section, task, look, partial(_named, metrics, name), marks=False)
            some |= drawn
            axes.set_visible(drawn)
            axes.set_title(LOSS_NAMES[name], fontsize=8)
            if name != "lambda_cyc":
                _scale_to_learning(axes)
        for axes in row:
            _format_steps(axes, bins=3)
            axes.tick_params(labelsize=7)
    if not some:  # runs of one line of metrics each
        plt.close(figure)
        return None
    figure.supxlabel("steps", fontsize=9)
    add_legend(figure, look, section.settings, _marks(section))
    return figure


def loss_caption(section: Section) -> str:
    """What the plot of losses shows, and of how many tasks."""
    tasks = curve_tasks(section)
    some = f" The first {MAX_TASKS} of {len(tasks)} tasks." if len(tasks) > MAX_TASKS else ""
    return (
        "Returns, losses before their weights, the spread of the targets of prediction (near 0 all states look alike), "
        "and the weight λ_cyc of the cycle loss: means over seeds, each point over the updates since the point before. "
        f"The first losses may lie outside of a panel.{some}"
    )


def _returns(shown: Shown, run: Record) -> Curve:
    return run.evaluations if shown == "evaluations" else training_curve(run)


def _named(metrics: Mapping[Path, Mapping[str, Curve]], name: str, run: Record) -> Curve:
    return metrics.get(run.path, {}).get(name, [])


def _metrics(run: Record) -> dict[str, Curve]:
    """Name → curve of the losses and λ_cyc in metrics.jsonl."""
    lines = jsonl.lines(run.path, "metrics")
    found = {name: [(m["step"], float(m[name])) for m in lines if files.is_number(m.get(name))] for name in LOSS_NAMES}
    if not any(value for _, value in found["loss_pred"]):  # zeros of RL, which predicts nothing
        found |= {"loss_pred": []}
    if not any(value for _, value in found["loss_cyc"]):  # SPR and RL have no cycle, whose weight would mean nothing
        found |= {"loss_cyc": [], "lambda_cyc": []}
    return {name: thinned(curve) for name, curve in found.items() if curve}


def _draw_panel(
    axes: Axes,
    section: Section,
    task: str,
    look: Look,
    curve_of: Callable[[Record], Curve],
    *,
    bands: bool = False,
    marks: bool = True,
) -> bool:
    """Draws the mean of each setting's finished runs, and every other run by itself; whether there was any."""
    drawn = False
    for setting, runs in section.runs.items():
        curves = [curve_of(run) for run in runs.get(task, {}).values()]
        drawn |= _draw_mean(axes, curves, look, setting, band_opacity(len(look.colour)) if bands else 0.0)
    for setting, others in section.unfinished_by_setting.items():
        for run in (run for run in others if run.task == task):
            drawn |= _draw_single(axes, curve_of(run), look, setting, run if marks else None)
    return drawn


def _draw_mean(axes: Axes, curves: Sequence[Curve], look: Look, setting: Setting, alpha: float) -> bool:
    """The mean over seeds up to where the shortest curve ends."""
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return False
    last = min(curve[-1][0] for curve in curves)
    steps = np.array([step for step, _ in max(curves, key=len) if step <= last])
    points = [np.asarray(curve, dtype=np.float64) for curve in curves]
    values = np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in points])  # (seeds, steps)
    colour, mean = look.colour[setting], values.mean(axis=0)
    if len(curves) > 1 and alpha:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=alpha, lw=0)
    axes.plot(steps, mean, color=colour, ls=look.dash[setting], lw=1.7)
    return True


def _draw_single(axes: Axes, curve: Curve, look: Look, setting: Setting, marked: Record | None) -> bool:
    """A run that is part of no mean; `marked` is the run, if its end is to be marked."""
    if not curve:
        return False
    colour = look.colour[setting]
    axes.plot(*zip(*curve, strict=True), color=colour, ls=look.dash[setting], lw=0.9, alpha=0.8)
    if marked is not None:
        mark = MARKS["stopped" if marked.stopped else "unfinished"]
        axes.plot(*curve[-1], mark, color=colour, mfc="white", ms=5, mew=1.3)
    return True


def _scale_to_learning(axes: Axes) -> None:
    """Limits a panel of losses to their values after the start, when an untrained network has losses of its own."""
    shown = []
    for line in axes.get_lines():
        steps, losses = np.asarray(line.get_xydata()).T
        shown += losses[(steps >= steps[0] + START * (steps[-1] - steps[0])) & np.isfinite(losses)].tolist()
    if not shown:
        return
    low, high = min(shown), max(shown)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _marks(section: Section) -> list[tuple[Line2D, str]]:
    """The entries of the legend for the marks that the section's plots have."""
    style = {"color": "#555555", "lw": 0.9, "mfc": "white", "ms": 5, "mew": 1.3}
    found = []
    if any(not run.stopped for run in section.unfinished):
        found.append((Line2D([], [], marker=MARKS["unfinished"], **style), "not finished"))  # type: ignore[arg-type]
    if any(run.stopped for run in section.unfinished):
        found.append((Line2D([], [], marker=MARKS["stopped"], **style), "stopped early"))  # type: ignore[arg-type]
    return found


def _format_steps(axes: Axes, bins: int = 5) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.locator_params(nbins=bins)
