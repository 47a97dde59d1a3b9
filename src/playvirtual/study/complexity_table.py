"""How large the networks of each setting are, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from playvirtual import published
from playvirtual.errors import InputError
from playvirtual.study.complexity import COUNTED_IN_PAPER, SMALLER_HEADS, Size, parameters
from playvirtual.study.records import Record
from playvirtual.study.sections import Section
from playvirtual.study.tables import Table

COUNTED = 12  # settings per section whose networks are built; building DMControl's takes a second each


def complexity_table(sections: Sequence[Section]) -> Table | None:
    """Parameters by task and setting, for the first task of each section, counted in two ways, beside the paper's."""
    paper = {(a.task, a.method): a.value for a in published.analyses() if a.analysis == "parameters_millions"}
    rows = []
    for section in sections:
        for setting, tasks in list(section.runs.items())[:COUNTED]:
            task = next((t for t in section.tasks if t in tasks), "")
            size = _parameters_if_known(next(iter(tasks[task].values()))) if task else None
            if size is not None:
                here = (f"{size.trainable:,}", "—" if size.as_in_paper is None else f"{size.as_in_paper:,}")
                printed = None if setting.changed else paper.get((task.partition("/")[2], setting.method))
                rows.append((task, setting.name, *here, "—" if printed is None else f"{printed:.2f} M"))
    columns = ("task", "setting", "trainable parameters", "counted as in the paper", "paper")
    note = f"The paper counts {COUNTED_IN_PAPER}. On DMControl {SMALLER_HEADS}."
    note += "".join(section.unlike_paper for section in sections)
    return Table("parameters", "Parameters", columns, rows, quiet={4}, note=note) if rows else None


def _parameters_if_known(record: Record) -> Size | None:
    """None where the checkpoint is gone or damaged: a table does without."""
    try:
        return parameters(record.path)
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return None
