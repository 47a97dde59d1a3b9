"""Prints how large the cycle loss and its gradients are beside the prediction's, in every run here that has cycles.

    python results/cycle_losses.py

For each finished run of `playvirtual` on Atari and DMControl, from its metrics.jsonl: means of L_pred and L_cyc over
three windows of training, and L_cyc over L_pred; on Atari also the gradient norm of the backward model, which learns
from cycles alone, over that of the forward model, which both losses train. Beside L_pred stands that of `spr` of the
same task, preset and seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent
WINDOWS = {"20–30k": (20_000, 30_000), "45–55k": (45_000, 55_000), "90–100k": (90_000, 100_000)}  # first and last step


@dataclass(frozen=True)
class Window:
    """Means over the lines of metrics in one window of a run; NaN for what the agent does not log."""

    pred: float
    cyc: float
    forward_norm: float
    backward_norm: float

    @property
    def loss_share(self) -> float:
        return self.cyc / self.pred

    @property
    def norm_share(self) -> float:
        return self.backward_norm / self.forward_norm


def window(run: Path, first: int, last: int) -> Window:
    """The means over the lines of a run from step `first` to step `last`."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    chosen = [line for line in lines if first <= line["step"] <= last]
    names = ("loss_pred", "loss_cyc", "grad_norm_dm", "grad_norm_bdm")
    return Window(*(float(np.mean([line.get(name, np.nan) for line in chosen])) for name in names))


def pairs() -> Iterator[tuple[Path, Path]]:
    """The folder of every run of `playvirtual` and that of its run of `spr`, which need not be there."""
    for config in sorted(RESULTS.glob("*/runs/*/*/seed-*/config.json")):
        run, setting = config.parent, config.parent.parent
        if run.relative_to(RESULTS).parts[0] in ("atari", "dmc") and setting.name.startswith("playvirtual"):
            yield run, setting.with_name(setting.name.replace("playvirtual", "spr")) / run.name


def rows() -> Iterator[tuple[str, str, str, Window, float]]:
    """Family, run and name of the window, what is found in it, and L_pred of `spr`, which may be NaN."""
    for run, baseline in pairs():
        family, _, task = run.parent.parent.name.partition("-")
        for name, (first, last) in WINDOWS.items():
            base = window(baseline, first, last).pred if baseline.exists() else float("nan")
            yield family, f"{task}, {run.parent.name}, {run.name}", name, window(run, first, last), base


def ranges(found: Sequence[tuple[str, str, str, Window, float]]) -> Iterator[str]:
    """The lowest and highest share of each family and window, and how the last L_pred of both methods compare."""
    for family in ("atari", "dmc"):
        for name in WINDOWS:
            windows = [window for chosen, _, place, window, _ in found if (chosen, place) == (family, name)]
            losses, norms = ([getattr(w, share) for w in windows] for share in ("loss_share", "norm_share"))
            line = f"{family}, {name}, {len(windows)} runs: L_cyc / L_pred {min(losses):.2f} to {max(losses):.2f}"
            yield line + ("" if np.isnan(norms[0]) else f", norms {min(norms):.2f} to {max(norms):.2f}")
    last = [(window.pred, base) for *_, name, window, base in found if name == [*WINDOWS][-1] and not np.isnan(base)]
    lower = sum(own < base for own, base in last)
    yield f"L_pred is lower than that of `spr` in {lower} of {len(last)} pairs at the end"


def main() -> None:
    """Prints a table of Markdown, a row for each run and window, and the ranges."""
    found = list(rows())
    print("| run | steps | L_pred | of `spr` | L_cyc | L_cyc / L_pred | norm of b's gradient / h's |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for _, run, name, own, base in found:
        figures = (own.pred, base, own.cyc, own.loss_share, own.norm_share)
        shown = " | ".join("—" if np.isnan(value) else f"{value:.3f}" for value in figures)
        print(f"| {run} | {name} | {shown} |")
    print("\n" + "\n".join(ranges(found)))


if __name__ == "__main__":
    main()
