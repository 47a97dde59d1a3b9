"""The paper's analyses (dynamics error, frozen encoders, parameters), filled with the runs that are there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from playvirtual import files, published
from playvirtual.config.build import method_names
from playvirtual.study.probes.complexity import COUNTED_IN_PAPER, Size, parameters
from playvirtual.study.probes.records import recorded
from playvirtual.study.report.records import Record
from playvirtual.study.report.sections import Section, by_preset
from playvirtual.study.report.tables.score_tables import with_spread
from playvirtual.study.report.tables.table import Table
from playvirtual.study.settings import folder_name


def analysis_tables(sections: Sequence[Section]) -> list[Table]:
    """The errors of probed dynamics models and the scores on frozen encoders, each beside the paper's numbers."""
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
                    # The scale of the latent state is that of the released encoder, which preset reference has.
                    comparable = setting.preset == "reference" and not setting.changed
                    printed = _paper("dynamics_mse", section, task, setting.method) if comparable else None
                    here = _error(errors)
                    paper = "—" if printed is None else f"{printed.value:.4f}"
                    rows.append((_place(section, task), setting.name, here, str(len(errors)), paper))
    columns = ("task", "setting", "mean squared error", "runs", "paper")
    note = (
        "Between h(f(s), a) and f(s′), online encoder, images not augmented, over the dimensions of the latent state "
        "and transitions of fresh episodes; smaller is only better between latent states of one scale. ± over seeds. "
        "The paper's encoder ends without a tanh: its numbers stand beside runs of preset reference alone."
    ) + _unlike_paper(sections, rows)
    return Table("dynamics-mse", "Dynamics models", columns, rows, quiet={4}, note=note) if rows else None


def _frozen_table(sections: Sequence[Section], preset: str) -> Table | None:
    rows, methods = [], {"none": "none", **_methods(preset)}
    for section in sections:
        pretrained = _pretrained(section, preset)
        for task in section.tasks if pretrained else ():
            for name in ("none", *pretrained):
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
    note = "RL alone; an encoder that was loaded from a run of the named setting is frozen."
    note += _unlike_paper(sections, rows)
    return Table("frozen-encoder", "Scores on frozen encoders", columns, rows, quiet={4}, note=note) if rows else None


def _pretrained(section: Section, preset: str) -> list[str]:
    """The settings whose encoders runs of the preset loaded, with no other change, in the order of methods."""
    changed = [s.changed for s in section.runs if (s.method, s.preset) == ("rl", preset) and len(s.changed) == 1]
    found = [str(value) for ((field, value),) in changed if field == "encoder_from"]
    order = list(_methods(preset))
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def _methods(preset: str) -> dict[str, str]:
    """Name of the run folder → method, for the methods of a preset; encoders are named after these folders."""
    return {folder_name(method, preset, {}): method for method in method_names()}


def _paper(analysis: str, section: Section, task: str, method: str) -> published.Analysis | None:
    """The paper's number; None where it has none, or the section's runs have another length."""
    if section.suite != "dmc100k":
        return None
    name = task.partition("/")[2]
    return next((a for a in published.analyses() if (a.analysis, a.task, a.method) == (analysis, name, method)), None)


def _unlike_paper(sections: Sequence[Section], rows: Sequence[tuple[str, ...]]) -> str:
    """What all runs change from the paper; "" if no row has a number of the paper, which is the last column."""
    return "".join(s.unlike_paper for s in sections if s.suite == "dmc100k") if any(r[-1] != "—" for r in rows) else ""


def _place(section: Section, task: str) -> str:
    return task if section.steps is None else f"{task}, {section.steps:,} steps"


def _error(errors: Sequence[float]) -> str:
    mean = f"{np.mean(errors):.4f}"
    return f"{mean} ± {np.std(errors, ddof=1):.4f}" if len(errors) > 1 else mean


MAX_COUNTED = 12  # settings per section whose networks are built; building DMControl's takes a second each


def complexity_table(sections: Sequence[Section]) -> Table | None:
    """The parameters of each setting on the first task of each section, counted in two ways, beside the paper's."""
    counts = [a for a in published.analyses() if a.analysis == "parameters_millions"]
    paper = {(a.task, a.method): a.value for a in counts}
    rows = []
    for section in sections:
        for setting, tasks in list(section.runs.items())[:MAX_COUNTED]:
            task = next((t for t in section.tasks if t in tasks), "")
            size = _parameters_if_known(next(iter(tasks[task].values()))) if task else None
            if size is not None:
                here = (f"{size.trainable:,}", "—" if size.as_in_paper is None else f"{size.as_in_paper:,}")
                printed = None if setting.changed else paper.get((task.partition("/")[2], setting.method))
                rows.append((task, setting.name, *here, "—" if printed is None else f"{printed:.2f} M"))
    columns = ("task", "setting", "trainable parameters", "counted as in the paper", "paper")
    note = f"The paper counts {COUNTED_IN_PAPER}."
    notes = {a.note: a.task for a in counts if a.note}
    note += "".join(f" Of the paper's {task}: {text}." for text, task in notes.items())
    note += "".join(section.unlike_paper for section in sections)
    return Table("parameters", "Parameters", columns, rows, quiet={4}, note=note) if rows else None


def _parameters_if_known(record: Record) -> Size | None:
    """The parameters of a run's agent, probed or counted now; None if its checkpoint is missing or damaged."""
    try:
        found = recorded(record.path, "complexity", record.steps)
        if found is not None:
            counted = files.entry(found, "parameters_as_in_paper")
            as_in_paper = None if counted is None else files.as_whole(counted, "parameters_as_in_paper")
            return Size(files.as_whole(files.entry(found, "parameters"), "parameters"), as_in_paper)
        return parameters(record.path)
    except ValueError:
        return None
