"""The page of a report: its parts, and the templates that turn them into HTML with everything escaped."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from playvirtual import files
from playvirtual.study.report import plots
from playvirtual.study.report.tables.table import Table

FOLDERS = {"tables": (".csv", ".md", ".tex"), "plots": (".png", ".svg")}
TEMPLATES = Environment(
    loader=PackageLoader("playvirtual.study.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Part:
    """A macro of templates/parts.html and its arguments."""

    macro: str
    arguments: dict[str, Any]


@dataclass
class Page:
    """Collects the parts of the page, and writes each table and plot into a file of its own beside it."""

    out: Path
    parts: list[Part] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        again = files.is_file(self.out / "index.html", "out")
        for name, endings in FOLDERS.items():
            (self.out / name).mkdir(parents=True, exist_ok=True)
            for file in (self.out / name).iterdir() if again else ():  # an earlier report may show other runs
                if file.suffix in endings:
                    file.unlink()

    def add(self, macro: str, **arguments: Any) -> None:
        """Adds a part that the macro of that name in templates/parts.html shows."""
        self.parts.append(Part(macro, arguments))

    def heading(self, key: str, title: str) -> None:
        """Starts a section, which the navigation at the top links to."""
        self.add("heading", key=key, title=title)

    def table(self, table: Table | None) -> None:
        """Shows the table, if there is one, and writes its files."""
        if table is not None:
            table.save(self.out / "tables")
            self.add("table", table=table)

    def plot(self, name: str, figure: Figure | None, caption: str, *, narrow: bool = False) -> None:
        """Shows the figure, if there is one, and writes its files."""
        if figure is not None:
            svg = Markup(plots.write(figure, self.out / "plots" / name).removeprefix("<svg"))
            self.add("plot", svg=svg, caption=caption, narrow=narrow)

    def write(self, title: str, facts: dict[str, str], incomplete: str) -> Path:
        """Writes index.html; `incomplete` says what is missing, "" if nothing is."""
        text = TEMPLATES.get_template("page.html").render(
            title=title,
            facts=facts,
            findings=self.findings,
            incomplete=incomplete,
            parts=self.parts,
            version=_version(),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
        target = self.out / "index.html"
        files.write(target, text)
        return target


def _version() -> str:
    try:
        return version("playvirtual")
    except PackageNotFoundError:
        return "(not installed)"
