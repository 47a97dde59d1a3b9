"""The plots of a report. Colours tell methods apart for colour-blind readers too and are the same everywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from playvirtual.study import statistics as st
from playvirtual.study.records import Record
from playvirtual.study.sections import Comparison, Section, Setting
from playvirtual.study.statistics import Estimate

COLOURS = {
    "rl": "#8a8a8a",
    "spr": "#e08214",
    "spr-bdm": "#56b4e9",
    "playvirtual": "#2176c7",
    "playvirtual-nd": "#1b9e77",
    "playvirtual-latent": "#c264a0",
    "playvirtual-every-step": "#d1495b",
    "playvirtual-no-warmup": "#a6841c",
    "playvirtual-perturbed": "#8c5a2b",
    "playvirtual-real-cycle": "#7b68c8",
}
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
# Stand-ins that the page replaces by its own colours, so that a plot follows light and dark.
INK, RULE = "#1c1e21", "#d7dade"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,
}
MAX_PANELS = 60
PROFILE_POINTS = 101


class Look:
    """A colour and a dash for each setting: the method's colour, a dash of its own for each variant."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        spare = iter([*(c for m, c in COLOURS.items() if m not in {s.method for s in settings}), *COLOURS.values()] * 9)
        self.colour: dict[Setting, str] = {}
        self.dash: dict[Setting, Any] = {}
        for number, setting in enumerate(settings):
            taken = set(self.colour.values())
            own = COLOURS.get(setting.method, "#555555")
            self.colour[setting] = own if own not in taken else next(spare)
            variant = setting.changed or setting.preset != "paper"
            self.dash[setting] = DASHES[number % len(DASHES)] if variant else "-"


def interval_plot(section: Section, names: dict[str, dict[Setting, Estimate]]) -> Figure:
    """One panel per aggregate: a point and its interval for each setting."""
    settings = list(next(iter(names.values())))
    look = Look(list(section.runs))
    figure, panels = plt.subplots(
        1, len(names), figsize=(9.2, 0.75 + 0.3 * len(settings)), layout="constrained", sharey=True, squeeze=False
    )
    places = range(len(settings) - 1, -1, -1)
    for axes, (name, estimates) in zip(panels[0], names.items(), strict=True):
        for place, setting in zip(places, settings, strict=True):
            e, colour = estimates[setting], look.colour[setting]
            _draw_interval(axes, e, place, colour)
        axes.set_title(name + (" (lower is better)" if "gap" in name else ""), fontsize=8.5)
        axes.set_ylim(-0.6, len(settings) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks(list(places), [_short(setting.name) for setting in settings])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    return figure


def curve_plot(section: Section) -> Figure | None:
    """Small multiples: for each task the mean over seeds and the standard deviation around it."""
    tasks = section.tasks[:MAX_PANELS]
    look, drawn = Look(list(section.runs)), False
    columns = min(len(tasks), 4 if len(tasks) > 6 else 3)
    rows = -(-len(tasks) // columns)
    size = (9.2, 0.55 + (2.1 if columns > 1 else 3.2) * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, task in zip(panels.flat, tasks, strict=False):
        for setting, runs in section.runs.items():
            drawn |= _draw_curve(axes, list(runs.get(task, {}).values()), look, setting)
        axes.set_title(_plain(task))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
        axes.locator_params(nbins=5)
    for axes in panels.flat[len(tasks) :]:
        axes.set_visible(False)
    if not drawn:
        plt.close(figure)
        return None
    figure.supxlabel("steps", fontsize=9)
    figure.supylabel("return", fontsize=9)
    _legend(figure, look, list(section.runs))
    return figure


def _draw_curve(axes: Axes, runs: list[Record], look: Look, setting: Setting) -> bool:
    """Evaluations where there are three or more of them, else returns of training episodes."""
    curves = [run.evaluations if len(run.evaluations) > 2 else run.training for run in runs]
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return False
    last = min(curve[-1][0] for curve in curves)
    steps = np.array([step for step, _ in max(curves, key=len) if step <= last])
    points = [np.asarray(curve, dtype=np.float64) for curve in curves]
    values = np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in points])  # (seeds, steps)
    colour, mean = look.colour[setting], values.mean(axis=0)
    if len(curves) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.16, lw=0)
    axes.plot(steps, mean, color=colour, ls=look.dash[setting], lw=1.7)
    return True


def profile_plot(section: Section) -> Figure:
    """The share of runs above each score, with 95 % bands."""
    settings = section.compared[0]
    look, scores = Look(list(section.runs)), {setting: section.matrix(setting) for setting in settings}
    values = np.concatenate([matrix.ravel() for matrix in scores.values()])
    low, high = float(values.min()), float(np.percentile(values, 99))
    taus = np.linspace(min(low, 0.0), max(high, low + 1e-3), PROFILE_POINTS)
    figure, axes = plt.subplots(figsize=(6.4, 3.3), layout="constrained")
    for setting, matrix in scores.items():
        e = st.bootstrap(lambda sample: st.performance_profile(sample, taus), matrix, reps=500)
        colour = look.colour[setting]
        if matrix.shape[0] > 1:
            axes.fill_between(taus, e.low, e.high, color=colour, alpha=0.16, lw=0)
        axes.plot(taus, e.point, color=colour, ls=look.dash[setting], lw=1.7)
    axes.set(xlabel=f"τ: {section.scale.partition(' (')[0]}", ylabel="share of runs above τ", ylim=(-0.02, 1.02))
    _legend(figure, look, settings)
    return figure


def improvement_plot(compared: Sequence[Comparison], section: Section) -> Figure:
    """The probability of improvement of each pair; at one half neither is better."""
    look = Look(list(section.runs))
    figure, axes = plt.subplots(figsize=(6.4, 0.75 + 0.3 * len(compared)), layout="constrained")
    places = list(range(len(compared) - 1, -1, -1))
    for place, (x, _, e, _) in zip(places, compared, strict=True):
        _draw_interval(axes, e, place, look.colour[x])
    axes.axvline(0.5, color=INK, lw=0.8, ls="--")
    axes.set_yticks(places, [f"{_short(x.name)} over {_short(y.name)}" for x, y, _, _ in compared])
    axes.set(xlim=(0, 1), ylim=(-0.6, len(compared) - 0.4), xlabel="P(improvement)")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _draw_interval(axes: Axes, estimate: Estimate, place: int, colour: str) -> None:
    ends = [float(estimate.low), float(estimate.high)]
    axes.plot(ends, [place, place], color=colour, lw=6, alpha=0.35, solid_capstyle="butt")
    axes.plot(float(estimate.point), place, "|", color=colour, ms=13, mew=2.4)


def write(figure: Figure, path: Path) -> str:
    """Writes PATH.png and PATH.svg; returns the SVG for the page, in whose colours it is drawn."""
    figure.savefig(path.with_suffix(".png"), dpi=130, facecolor="white")
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    path.with_suffix(".svg").write_text(text, encoding="utf-8")
    inline = text[text.index("<svg") :].replace(INK, "currentColor").replace(RULE, "var(--rule)")
    inline = re.sub(r"<metadata>.*?</metadata>", "", inline, flags=re.DOTALL)
    return _unique_ids(inline, path.name)


def _unique_ids(svg: str, name: str) -> str:
    """The same picture with ids that no other picture of the page has."""
    prefix = re.sub(r"[^a-z0-9]", "", name.lower())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def _legend(figure: Figure, look: Look, settings: Sequence[Setting]) -> None:
    lines = [Line2D([], [], color=look.colour[s], ls=look.dash[s], lw=2.2) for s in settings]
    names = [_short(setting.name) for setting in settings]
    figure.legend(lines, names, loc="outside upper center", ncols=min(len(names), 5), handlelength=1.8)


def _short(name: str) -> str:
    return _plain(name if len(name) <= 34 else name[:33] + "…")


def _plain(text: str) -> str:
    """Without what Matplotlib would take for mathematics, and without control characters."""
    return re.sub(r"[\x00-\x1f]", " ", text).replace("$", r"\$")
