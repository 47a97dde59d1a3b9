"""One table per preset: runs under different presets are different experiments and never share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from playvirtual.config import PRESETS
from playvirtual.study.sections import Section
from playvirtual.study.tables import Table

DEFAULT = "paper"


def by_preset(sections: Sequence[Section], make: Callable[[str], Table | None]) -> list[Table]:
    """The table that `make` has for each preset of the runs.

    Its caption says the preset, unless that is the default one and the only one; its files are named after any other.
    """
    found = {setting.preset for section in sections for setting in section.runs}
    tables = []
    for preset in (preset for preset in PRESETS if preset in found):
        table = make(preset)
        if table is not None:
            name = table.name if preset == DEFAULT else f"{table.name}-{preset}"
            said = "" if found == {DEFAULT} else f" (preset {preset})"
            tables.append(replace(table, name=name, caption=f"{table.caption}{said}"))
    return tables
