"""What `playvirtual probe` does: takes a probe, records it in RUN/probes.json, prints the paper's number beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playvirtual import envs, published
from playvirtual.config.record import to_dict
from playvirtual.config.schema import Config
from playvirtual.errors import unknown
from playvirtual.runs.folder import RunFolder
from playvirtual.study.probes.complexity import COUNTED_IN_PAPER, complexity
from playvirtual.study.probes.dynamics_error import dynamics_mse
from playvirtual.study.probes.records import save
from playvirtual.study.settings import changes, setting_name

PROBES = ("dynamics", "complexity")


def probe(run: str | Path, what: str, *, transitions: int = 1000, seed: int | None = None, device: str = "auto") -> str:
    """Takes the probe of that name, adds it to the run's probes.json, and returns it as text beside the paper's."""
    if what == "dynamics":
        error, step = dynamics_mse(run, transitions, seed, device)
        config = RunFolder.open(run).config()
        used = config.seed if seed is None else seed
        save(run, what, {"step": step, "mse": error, "transitions": transitions, "seed": used})
        text = f"dynamics model: mean squared error {error:.4f} over {transitions} transitions (seed {used})"
        return "\n".join([text, beside_paper(config, "dynamics_mse", config.task.partition("/")[2], "{:.4f}")])
    if what == "complexity":
        found = complexity(run)
        save(run, what, found)
        return "\n".join(_complexity_lines(RunFolder.open(run).config(), found))
    raise unknown("probe", what, PROBES)


def _complexity_lines(config: Config, found: Mapping[str, Any]) -> list[str]:
    counted, seconds = found["parameters_as_in_paper"], found["seconds_per_1000_updates"]
    return [
        f"trainable parameters: {found['parameters']:,}",
        *([] if counted is None else [f"counted as in the paper: {counted:,} ({COUNTED_IN_PAPER})"]),
        beside_paper(config, "parameters_millions", config.task.partition("/")[2], "{:.2f} million"),
        "1000 updates: none made yet" if seconds is None else f"1000 updates: {seconds:.2f} s of the host's time",
        beside_paper(config, "training_time_overhead_pct", envs.family(config.task), "{:.0f} % longer than SPR"),
    ]


def beside_paper(config: Config, analysis: str, task: str, shown: str) -> str:
    """The paper's number, and what the run has that the paper's run had not."""
    key = (analysis, task, config.method)
    found = next((a for a in published.analyses() if (a.analysis, a.task, a.method) == key), None)
    if found is None:
        return f"  paper: no number for {config.method} on {config.task}"
    note = f", {found.note}" if found.note and config.preset == "paper" else ""
    # The number of an analysis with a note is of preset reference's agent, that of others of no preset in particular.
    preset = {} if config.preset == "paper" or found.note else {"preset": config.preset}
    changed = setting_name("", "paper", {**preset, **changes(to_dict(config))}).removeprefix(", ")
    return f"  paper: {shown.format(found.value)}{note}" + (f" (this run has {changed})" if changed else "")
