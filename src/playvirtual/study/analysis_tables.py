"""The paper's analyses of dynamics models and representations, wherever there are runs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from playvirtual import published
from playvirtual.config import METHODS
from playvirtual.study.by_preset import by_preset
from playvirtual.study.score_tables import with_spread
from playvirtual.study.sections import Section
from playvirtual.study.settings import folder_name
from playvirtual.study.tables import Table


def analysis_tables(sections: Sequence[Section]) -> list[Table]:
    """The error of probed dynamics models and the scores on fixed encoders, each beside the paper's numbers."""
    dynamics = _dynamics_table(sections)
    return [*([dynamics] if dynamics else []), *by_preset(sections, partial(_frozen_table, sections))]


def _dynamics_table(sections: Sequence[Section]) -> Table | None:
    rows = []
    for section in sections:
        for task in section.tasks:
            for setting, tasks in section.runs.items():
                runs = tasks.get(task, {}).values()
                errors = [run.dynamics_mse for run in runs if run.dynamics_mse is not None]
                if errors:
                    printed = _paper("dynamics_mse", section, task, setting.name)
                    here = _error(errors)
                    paper = "—" if printed is None else f"{printed.value:.4f}"
                    rows.append((_place(section, task), setting.name, here, str(len(errors)), paper))
    columns = ("task", "setting", "mean squared error", "runs", "paper")
    note = (
        "Between h(f(s), a) and f(s′), online encoder, pictures not augmented, over the dimensions of the latent state "
        "and transitions of fresh episodes; smaller is only better between latent states of one scale. ± over seeds."
    ) + _unlike_paper(sections, rows)
    return Table("dynamics-mse", "Dynamics models", columns, rows, quiet={4}, note=note) if rows else None


def _frozen_table(sections: Sequence[Section], preset: str) -> Table | None:
    rows, methods = [], {"none": "none", **_methods(preset)}
    for section in sections:
        lenders = _lenders(section, preset)
        for task in section.tasks if lenders else ():
            for name in ("none", *lenders):
                own = () if name == "none" else (("encoder_from", name),)
                wanted = ("rl", preset, own)
                found = [s for s in section.runs if (s.method, s.preset, s.changed) == wanted]
                scores = section.scores(found[0], task) if found else []
                if scores:
                    printed = _paper("frozen_encoder_score", section, task, methods.get(name, ""))
                    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
                    here = with_spread(float(np.mean(scores)), std)
                    paper = "—" if printed is None else with_spread(printed.value, printed.std)
                    rows.append((_place(section, task), name, here, str(len(scores)), paper))
    columns = ("task", "encoder of", "score", "runs", "paper")
    note = "RL alone; an encoder that was taken over from a run of the named setting is not trained further."
    note += _unlike_paper(sections, rows)
    return Table("frozen-encoder", "Scores on fixed encoders", columns, rows, quiet={4}, note=note) if rows else None


def _lenders(section: Section, preset: str) -> list[str]:
    """The settings whose encoders runs of the preset took over and changed nothing else, in the paper's order."""
    changed = [s.changed for s in section.runs if (s.method, s.preset) == ("rl", preset) and len(s.changed) == 1]
    found = [str(value) for ((field, value),) in changed if field == "encoder_from"]
    order = list(_methods(preset))
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def _methods(preset: str) -> dict[str, str]:
    """What the folders of a preset's unchanged methods are called → the method; encoders are named by them."""
    return {folder_name(method, preset, {}): method for method in METHODS}


def _paper(analysis: str, section: Section, task: str, method: str) -> published.Analysis | None:
    """The paper's number, for runs of its length."""
    if section.suite != "dmc100k":
        return None
    name = task.partition("/")[2]
    return next((a for a in published.analyses() if (a.analysis, a.task, a.method) == (analysis, name, method)), None)


def _unlike_paper(sections: Sequence[Section], rows: Sequence[tuple[str, ...]]) -> str:
    """What is not as in the paper where its numbers stand, which are the last column."""
    return "".join(s.unlike_paper for s in sections if s.suite == "dmc100k") if any(r[-1] != "—" for r in rows) else ""


def _place(section: Section, task: str) -> str:
    return task if section.steps is None else f"{task}, {section.steps:,} steps"


def _error(errors: Sequence[float]) -> str:
    mean = f"{np.mean(errors):.4f}"
    return f"{mean} ± {np.std(errors, ddof=1):.4f}" if len(errors) > 1 else mean
