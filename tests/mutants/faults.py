"""The list of faults: what each changes, which tests should notice it, and whether it still applies to the code."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "playvirtual"
LISTS = Path(__file__).parent / "faults"


@dataclass(frozen=True)
class Fault:
    """One slip of a programmer: `find`, which stands exactly once in `file`, becomes `replace`."""

    group: str  # the name of the list that it stands in
    name: str
    file: str  # relative to src/playvirtual
    find: str
    replace: str
    tests: tuple[str, ...]  # files, folders or node ids for pytest, relative to the root
    equivalent: str = ""  # why no test can notice it; empty for a fault that must be noticed

    def problem(self) -> str:
        """Why the fault does not apply to the code as it is; empty if it does."""
        path = SOURCE / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.find)) != 1:
            return f"the text to replace stands {count} times in {self.file}"
        try:
            if path.suffix == ".py":
                compile(text.replace(self.find, self.replace), self.file, "exec")
        except SyntaxError as error:
            return f"the changed file does not compile: {error}"
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        return f"{missing[0]} does not exist" if missing else ""

    def apply(self, source: Path) -> None:
        """Changes the copy of src/playvirtual at `source`."""
        path = source / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.find, self.replace), encoding="utf-8")


def read_faults(folder: Path = LISTS) -> list[Fault]:
    """All faults of all lists, in their order; raises a ValueError where a list is not as it must be."""
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in content["fault"]:
            try:
                fault = Fault(path.stem, **{**entry, "tests": tuple(entry.get("tests", content.get("tests", ())))})
            except TypeError as error:
                raise ValueError(f"{path.name}: {entry.get('name', entry)}: {error}") from None
            if not fault.tests or fault.find == fault.replace:
                raise ValueError(f"{path.name}: {fault.name}: has no tests or changes nothing")
            faults.append(fault)
    if twice := [name for name, count in Counter(fault.name for fault in faults).items() if count > 1]:
        raise ValueError(f"the name {twice[0]!r} stands twice")
    return faults
