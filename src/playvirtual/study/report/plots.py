"""The plots of a report. Every method has one colour in all of them, chosen with colour-blind readers in mind."""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from playvirtual import files
from playvirtual.config.build import method_names
from playvirtual.study.report import statistics as st
from playvirtual.study.report.sections import Comparison, Section, Setting
from playvirtual.study.report.statistics import Estimate

matplotlib.use("Agg")

WIDTH = 34  # characters of a line


def labels(names: Sequence[str], lines: int = 4) -> list[str]:
    """Each name in at most so many lines, safe for Matplotlib; names that would look alike are numbered."""
    shown = [_fit(name, lines) for name in names]
    often, met = Counter(shown), Counter[str]()
    for at, text in enumerate(shown):
        if often[text] > 1:
            met[text] += 1
            shown[at] = f"{text} ({met[text]})"
    return [plain(text) for text in shown]


def plain(text: str) -> str:
    """The text without control characters but line ends, and with `$` escaped, which Matplotlib reads as math."""
    return re.sub(r"[\x00-\x09\x0b-\x1f]", " ", text).replace("$", r"\$")


def _fit(name: str, lines: int) -> str:
    """The name wrapped into at most so many lines, shortened in the middle if it must be."""
    text = re.sub(r"[\x00-\x1f]", " ", name)
    for keep in range(min(len(text), WIDTH * lines), 0, -1):
        head = -(-keep // 2)
        shown = _wrap(text if keep >= len(text) else f"{text[:head]}…{text[len(text) - keep // 2 :]}")
        if len(shown) <= lines:
            return "\n".join(shown)
    return text


def _wrap(text: str) -> list[str]:
    """The lines of a text, broken anywhere but inside an assignment such as "K = 3"."""
    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return [
        line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(whole, WIDTH, break_on_hyphens=False)
    ] or [""]


COLOURS = {
    "rl": "#8a8a8a",
    "spr": "#e08214",
    "spr-bdm": "#56b4e9",
    "spr-bdm-prediction": "#2a9aa8",
    "playvirtual": "#2176c7",
    "playvirtual-nd": "#1b9e77",
    "playvirtual-latent": "#c264a0",
    "playvirtual-every-step": "#d1495b",
    "playvirtual-no-warmup": "#a6841c",
    "playvirtual-perturbed": "#8c5a2b",
    "playvirtual-real-cycle": "#7b68c8",
    "der": "#b15928",
    "otr": "#6b8e23",
    "sac-ae": "#0f8b8d",
    "curl": "#cc3311",
    "drq": "#5e4fa2",
    "curl-virtual": "#e9706a",
    "drq-virtual": "#9e86d6",
    "spr-resets": "#b8620a",
    "playvirtual-resets": "#0b4f94",
    "sr-spr": "#4d7c0f",
    "sr-spr-virtual": "#8fbf3f",
    "bbf": "#4a4a4a",
    "bbf-virtual": "#a05a7c",
}
OTHER_METHODS = ("#117733", "#ddaa33", "#332288", "#aa4499")  # of methods that are registered from outside
OTHER = "#555555"
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
# The page replaces these by its own colours, so that a plot follows light and dark mode.
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
MANY = 8  # settings, beyond which a plot gets larger and its bands more transparent
PROFILE_POINTS = 101
MARGIN = 0.03  # inches above and below the rows of a plot
LEGEND_LINE = 0.32  # inches of a legend of one line


def method_colour(method: str) -> str:
    """The colour of a method, the same in every plot."""
    others = [name for name in method_names() if name not in COLOURS]
    if method in others:
        return OTHER_METHODS[others.index(method) % len(OTHER_METHODS)]
    return COLOURS.get(method, OTHER)


class Look:
    """A colour and a dash for each setting: the method's colour, another pair for each of its variants."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        first = {s.method: s for s in reversed(settings)}  # the setting of each method that has the method's colour
        spare = iter([colour for method, colour in COLOURS.items() if method not in first])
        pairs = [(colour, dash) for dash, colour in product(DASHES[1:], COLOURS.values())]
        self.colour: dict[Setting, str] = {}
        self.dash: dict[Setting, Any] = {}
        dash: Any
        for number, setting in enumerate(settings):
            taken = [(self.colour[s], self.dash[s]) for s in self.colour]
            dash = DASHES[number % len(DASHES)] if setting.changed or setting.preset != "paper" else "-"
            own = method_colour(setting.method) if first[setting.method] is setting else next(spare, None)
            if own is None or (own, dash) in taken:  # no colour is left: a dash that this colour has not yet
                own, dash = next((pair for pair in pairs if pair not in taken), (OTHER, dash))
            self.colour[setting], self.dash[setting] = own, dash


def interval_plot(section: Section, names: dict[str, dict[Setting, Estimate]]) -> Figure:
    """One panel per aggregate: a point and its interval for each setting."""
    settings = list(next(iter(names.values())))
    look, shown = Look(list(section.runs)), labels([setting.name for setting in settings])
    places, height = _row_positions(shown)
    size = (9.2, 0.75 + height)
    figure, panels = plt.subplots(1, len(names), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axes, (name, estimates) in zip(panels[0], names.items(), strict=True):
        for place, setting in zip(places, settings, strict=True):
            e, colour = estimates[setting], look.colour[setting]
            _draw_interval(axes, e, place, colour)
        axes.set_title(name + (" (lower is better)" if "gap" in name else ""), fontsize=8.5)
        axes.set_ylim(-MARGIN, height + MARGIN)
        axes.grid(axis="y", visible=False)
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks(places, shown)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    _wrap_titles(figure)
    return figure


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
            axes.fill_between(taus, e.low, e.high, color=colour, alpha=band_opacity(len(settings)), lw=0)
        axes.plot(taus, e.point, color=colour, ls=look.dash[setting], lw=1.7)
    axes.set(xlabel=f"τ: {section.scale.partition(' (')[0]}", ylabel="share of runs above τ", ylim=(-0.02, 1.02))
    add_legend(figure, look, settings)
    return figure


def improvement_plot(compared: Sequence[Comparison], section: Section) -> Figure:
    """The probability of improvement of each pair; at one half neither is better."""
    look, shown = Look(list(section.runs)), labels([f"{c.x.name} over {c.y.name}" for c in compared], lines=8)
    places, height = _row_positions(shown)
    figure, axes = plt.subplots(figsize=(6.4, 0.75 + height), layout="constrained")
    for place, comparison in zip(places, compared, strict=True):
        _draw_interval(axes, comparison.estimate, place, look.colour[comparison.x])
    axes.axvline(0.5, color=INK, lw=0.8, ls="--")
    axes.set_yticks(places, shown)
    axes.set(xlim=(0, 1), ylim=(-MARGIN, height + MARGIN), xlabel="P(improvement)")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _draw_interval(axes: Axes, estimate: Estimate, place: float, colour: str) -> None:
    ends = [float(estimate.low), float(estimate.high)]
    axes.plot(ends, [place, place], color=colour, lw=6, alpha=0.35, solid_capstyle="butt")
    axes.plot(float(estimate.point), place, "|", color=colour, ms=13, mew=2.4, clip_on=False)  # whole at 0 and 1


def write(figure: Figure, path: Path) -> str:
    """Writes PATH.png and PATH.svg; returns the <svg> element for the page, with the page's colours."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=130, facecolor="white")
    files.write(path.with_suffix(".png"), image.getvalue())
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    files.write(path.with_suffix(".svg"), text)
    inline = text[text.index("<svg") :].replace(INK, "currentColor").replace(RULE, "var(--rule)")
    inline = re.sub(r"<metadata>.*?</metadata>", "", inline, flags=re.DOTALL)
    return _unique_ids(inline, path.name)


def _unique_ids(svg: str, name: str) -> str:
    """The same SVG with ids that no other SVG of the page has."""
    prefix = re.sub(r"[^a-z0-9]", "", name.lower())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def add_legend(
    figure: Figure, look: Look, settings: Sequence[Setting], others: Sequence[tuple[Line2D, str]] = ()
) -> None:
    """Adds a legend above the plot in as many columns as fit; the figure grows with every line but the first."""
    lines = [Line2D([], [], color=look.colour[s], ls=look.dash[s], lw=2.2) for s in settings]
    lines += [line for line, _ in others]
    names = [*labels([setting.name for setting in settings]), *(name for _, name in others)]
    for columns in range(min(len(names), 5), 0, -1):
        legend = figure.legend(lines, names, loc="outside upper center", ncols=columns, handlelength=1.8)
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + max(0.0, box.height / figure.dpi - LEGEND_LINE))


def _wrap_titles(figure: Figure) -> None:
    """Breaks titles that are wider than their panels before the bracket."""
    figure.draw_without_rendering()  # lays out the panels, so that their widths are known
    for axes in figure.axes:
        if axes.title.get_window_extent().width > axes.get_window_extent().width:
            axes.set_title(axes.get_title().replace(" (", "\n("), fontsize=axes.title.get_fontsize())


def _row_positions(shown: Sequence[str]) -> tuple[list[float], float]:
    """The positions of rows with these labels, the first on top, and the height of all, in inches."""
    heights = [0.15 + 0.15 * (text.count("\n") + 1) for text in shown]
    total = sum(heights)
    return [total - sum(heights[:at]) - own / 2 for at, own in enumerate(heights)], total


def band_opacity(settings: int) -> float:
    """The opacity of an interval's band in a plot of so many settings."""
    return 0.16 * min(1.0, MANY / settings)
