"""What `playvirtual probe` says of a trained run: a measurement beside the paper's number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playvirtual import envs, published
from playvirtual.config import Config, SacConfig, to_dict
from playvirtual.errors import unknown
from playvirtual.study.complexity import COUNTED_IN_PAPER, SMALLER_HEADS, complexity
from playvirtual.study.dynamics_error import dynamics_mse
from playvirtual.study.probe_results import save
from playvirtual.study.settings import changes, setting_name
from playvirtual.training.run_folder import RunFolder

PROBES = ("dynamics", "complexity")


def probe(run: str | Path, what: str, *, transitions: int = 1000, seed: int | None = None, device: str = "auto") -> str:
    """Takes the probe of that name, adds it to the run's probes.json, and says it beside the paper's number."""
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
    heads = f", {SMALLER_HEADS}" if isinstance(config.agent, SacConfig) and config.preset == "paper" else ""
    return [
        f"trainable parameters: {found['parameters']:,}",
        *([] if counted is None else [f"counted as in the paper: {counted:,} ({COUNTED_IN_PAPER})"]),
        beside_paper(config, "parameters_millions", config.task.partition("/")[2], "{:.2f} million" + heads),
        "1000 updates: none made yet" if seconds is None else f"1000 updates: {seconds:.2f} s of the host's time",
        beside_paper(config, "training_time_overhead_pct", envs.family(config.task), "{:.0f} % longer than SPR"),
    ]


def beside_paper(config: Config, analysis: str, task: str, shown: str) -> str:
    """The paper's number and what in the run is not as it is there."""
    key = (analysis, task, config.method)
    value = next((a.value for a in published.analyses() if (a.analysis, a.task, a.method) == key), None)
    if value is None:
        return f"  paper: no number for {config.method} on {config.task}"
    preset = {} if config.preset == "paper" else {"preset": config.preset}
    changed = setting_name("", "paper", {**preset, **changes(to_dict(config))}).removeprefix(", ")
    return f"  paper: {shown.format(value)}" + (f" (this run has {changed})" if changed else "")
