"""What `playvirtual probe` says of a trained run: a measurement beside the paper's number."""

from __future__ import annotations

from pathlib import Path

from playvirtual import envs, published
from playvirtual.config import Config, to_dict
from playvirtual.errors import unknown
from playvirtual.study.complexity import complexity
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
        config = RunFolder.open(run).config()
        save(run, what, found)
        seconds = found["seconds_per_1000_updates"]
        lines = [
            f"trainable parameters: {found['parameters']:,}",
            beside_paper(config, "parameters_millions", config.task.partition("/")[2], "{:.2f} million"),
            "1000 updates: none made yet" if seconds is None else f"1000 updates: {seconds:.2f} s of the host's time",
            beside_paper(config, "training_time_overhead_pct", envs.family(config.task), "{:.0f} % longer than SPR"),
        ]
        return "\n".join(lines)
    raise unknown("probe", what, PROBES)


def beside_paper(config: Config, analysis: str, task: str, shown: str) -> str:
    """The paper's number and what in the run is not as it is there."""
    key = (analysis, task, config.method)
    value = next((a.value for a in published.analyses() if (a.analysis, a.task, a.method) == key), None)
    if value is None:
        return f"  paper: no number for {config.method} on {config.task}"
    preset = {} if config.preset == "paper" else {"preset": config.preset}
    changed = setting_name("", "paper", {**preset, **changes(to_dict(config))}).removeprefix(", ")
    return f"  paper: {shown.format(value)}" + (f" (this run has {changed})" if changed else "")
