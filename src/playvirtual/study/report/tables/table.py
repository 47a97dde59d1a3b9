"""A table of text, and its files in CSV, Markdown and LaTeX, each with its own escaping."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from playvirtual import files

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "λ": r"$\lambda$",
    "–": "--",
    "—": "---",
}


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption; `strong` cells are bold, `quiet` columns hold the paper's numbers."""

    name: str  # of its files
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    strong: set[tuple[int, int]] = field(default_factory=set)  # (row, column)
    quiet: set[int] = field(default_factory=set)  # columns
    note: str = ""

    def csv(self) -> str:
        """The table in CSV (RFC 4180); a text that a spreadsheet would read as a formula gets a leading apostrophe."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_no_formula(text) for text in self.columns])
        writer.writerows([[_no_formula(text) for text in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        """The table in Markdown, its caption above it and its note below."""
        lines = [f"**{_markdown(self.caption)}**", ""]
        lines.append(f"| {' | '.join(map(_markdown, self.columns))} |")
        lines.append(f"| {' | '.join(['---', *['---:'] * (len(self.columns) - 1)])} |")
        for r, row in enumerate(self.rows):
            cells = [f"**{_markdown(t)}**" if (r, c) in self.strong else _markdown(t) for c, t in enumerate(row)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, *(["", _markdown(self.note)] if self.note else [])]) + "\n"

    def latex(self) -> str:
        """The table in LaTeX, for the package booktabs."""
        rows = [
            " & ".join(f"\\textbf{{{_latex(t)}}}" if (r, c) in self.strong else _latex(t) for c, t in enumerate(row))
            for r, row in enumerate(self.rows)
        ]
        lines = ["\\begin{table}", "\\centering", f"\\caption{{{_latex(self.caption)}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", "\\toprule"]
        lines += [f"{' & '.join(map(_latex, self.columns))} \\\\", "\\midrule", *(f"{row} \\\\" for row in rows)]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"

    def save(self, folder: Path) -> None:
        """Writes NAME.csv, NAME.md and NAME.tex."""
        for ending, text in (("csv", self.csv()), ("md", self.markdown()), ("tex", self.latex())):
            files.write(folder / f"{self.name}.{ending}", text)


def _markdown(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("*", "\\*").replace("`", "\\`").replace("\n", " ")


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text.replace("\n", " "))


def _no_formula(text: str) -> str:
    """The text as a cell of CSV; a number has a plain hyphen for its minus sign, as programs read it."""
    number = text.replace("−", "-")
    try:
        float(number)
    except ValueError:
        return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
    return number
