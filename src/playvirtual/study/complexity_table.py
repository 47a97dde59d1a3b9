"""How large the networks of each setting are, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from playvirtual import published
from playvirtual.errors import InputError
from playvirtual.study.complexity import parameters
from playvirtual.study.records import Record
from playvirtual.study.sections import Section
from playvirtual.study.tables import Table

COUNTED = 12  # settings per section whose networks are built; building DMControl's takes a second each


def complexity_table(sections: Sequence[Section]) -> Table | None:
    """Trainable parameters by task and setting, for the first task of each section, beside the paper's."""
    paper = {(a.task, a.method): a.value for a in published.analyses() if a.analysis == "parameters_millions"}
    rows = []
    for section in sections:
        for setting, tasks in list(section.runs.items())[:COUNTED]:
            task = next((t for t in section.tasks if t in tasks), "")
            count = _parameters_if_known(next(iter(tasks[task].values()))) if task else None
            if count is not None:
                printed = paper.get((task.partition("/")[2], setting.name))
                rows.append((task, setting.name, f"{count:,}", "—" if printed is None else f"{printed:.2f} M"))
    columns = ("task", "setting", "trainable parameters", "paper")
    note = "The paper counts what its code declares, parts that nothing reads included."
    return Table("parameters", "Parameters", columns, rows, quiet={3}, note=note) if rows else None


def _parameters_if_known(record: Record) -> int | None:
    """None where the checkpoint is gone or damaged: a table does without."""
    try:
        return parameters(record.path)
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return None
