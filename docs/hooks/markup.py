"""What pages have beyond Markdown: equations, excerpts of the source, and diagrams, all of them finished at the build.

- ```` ```math ```` and $`…`$ hold LaTeX, which becomes a drawing in SVG: it needs no script and no font.
- A line `# source: playvirtual.method.virtual:cycle` in a block of Python becomes the code of that function or class,
  without its docstring. A name that is gone ends the build.
- ```` ```mermaid ```` with `graph TD` and lines `a --> b` becomes a drawing in SVG.
- The index of a symbol in the text, as in L_cyc or s_{t+K}, is lowered; a flag, as in `--env-arg`, keeps to one line.
"""

from __future__ import annotations

import ast
import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

import ziamath
from mkdocs.exceptions import PluginError

INLINE_SIZE, BLOCK_SIZE = 16.0, 18.0  # pixels
SOURCE = Path(__file__).resolve().parents[2] / "src"
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`]+)`\$")
EXCERPT = re.compile(r"^# source: ([\w.]+):([\w.]+)$", re.MULTILINE)
SYMBOL = re.compile(r"(?<![\w/.])([A-Za-zẑλσΣ][\u0300-\u036f]*′?)_(?:\{([^{}<>]+)\}|([A-Za-z]{1,6}))(?!\w)(?:\^(\w+))?")
FLAG = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]*")
DIAGRAM = re.compile(r"^```mermaid\ngraph TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)


ziamath.config.svg2 = False  # glyphs as paths, not as symbols whose names would be the same in every equation


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = BLOCK.sub(lambda m: f'\n<div class="equation">{equation(m[1], inline=False)}</div>\n', markdown)
    markdown = INLINE.sub(lambda m: equation(m[1], inline=True), markdown)
    markdown = EXCERPT.sub(lambda m: excerpt(m[1], m[2]), markdown)
    return DIAGRAM.sub(lambda m: f"\n{drawing(edges(m[1]))}\n", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Lowers the indices of symbols outside of code, and keeps flags within it together."""
    parts, inside = [], dict.fromkeys(("code", "pre", "svg", "script", "style"), 0)
    for part in re.split(r"(<[^>]*>)", html):
        if part.startswith("<"):
            tag = re.match(r"</?(\w+)", part)
            if tag is not None and tag[1] in inside:
                inside[tag[1]] += -1 if part.startswith("</") else 1
        elif not any(inside.values()):
            part = SYMBOL.sub(_with_index, part)
        elif inside["code"] and not inside["pre"]:
            part = FLAG.sub(lambda m: f'<span class="flag">{m[0]}</span>', part)
        parts.append(part)
    return "".join(parts)


def _with_index(symbol: re.Match[str]) -> str:
    raised = f"<sup>{symbol[4]}</sup>" if symbol[4] else ""
    return f"{symbol[1]}<sub>{symbol[2] or symbol[3]}</sub>{raised}"


def equation(latex: str, *, inline: bool) -> str:
    """A drawing in the color of the text; its LaTeX is there for those who cannot see it."""
    drawn = ziamath.Latex(
        latex.strip(), size=INLINE_SIZE if inline else BLOCK_SIZE, inline=inline, color="currentColor"
    )
    shift = f' style="vertical-align: {drawn.getyofst():.2f}px"' if inline else ""
    svg = drawn.svg().replace("<svg ", f"<svg{shift} ", 1)
    return f'<span class="math" role="img" aria-label="{escape(latex.strip())}">{svg}</span>'


def excerpt(module: str, name: str) -> str:
    """The code of a function, a class or a method ("Class.method") of a module, without its docstring."""
    text = (SOURCE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        node = next((child for child in node.body if getattr(child, "name", None) == part), None)
        if node is None:
            raise PluginError(f"an excerpt of {module}:{name} is asked for; there is no such function or class")
    lines = text.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    kept = lines[first : node.end_lineno]
    if ast.get_docstring(node) is not None:
        doc = node.body[0]
        kept = lines[first : doc.lineno - 1] + lines[doc.end_lineno : node.end_lineno]
    parent = f": {name.rpartition('.')[0]}" if "." in name else ""
    return f"# {module.replace('.', '/')}.py{parent}\n" + textwrap.dedent("\n".join(kept))


def edges(text: str) -> list[tuple[str, str]]:
    """The arrows of a diagram."""
    found = [re.fullmatch(r"\s*(\w+) --> (\w+)\s*", line) for line in text.splitlines() if line.strip()]
    if not all(found):
        raise PluginError(f"a diagram has lines that are not of the form 'a --> b': {text!r}")
    return [(match[1], match[2]) for match in found if match]


def drawing(arrows: list[tuple[str, str]]) -> str:
    """An SVG of boxes in rows: each stands below everything that points to it, near the middle of what does."""
    names = list(dict.fromkeys(name for arrow in arrows for name in arrow))
    above = {name: [a for a, b in arrows if b == name] for name in names}
    row: dict[str, int] = {}
    while len(row) < len(names):
        ready = [n for n in names if n not in row and all(a in row for a in above[n])]
        if not ready:
            raise PluginError("a diagram has a cycle")
        row |= {name: 1 + max((row[a] for a in above[name]), default=-1) for name in ready}
    x: dict[str, float] = {}
    for level in range(max(row.values()) + 1):
        placed = sorted((n for n in names if row[n] == level), key=lambda n: _middle([x[a] for a in above[n]]))
        # One that stands alone is below what points to it, so that no arrow past its row runs through its box.
        center = _middle([x[a] for a in above[placed[0]]]) if len(placed) == 1 else 0.0
        for i, name in enumerate(placed):
            x[name] = center + (i - (len(placed) - 1) / 2) * 170
    left, width, step = min(x.values()) - 75, max(x.values()) - min(x.values()) + 150, 72
    height = (max(row.values()) + 1) * step - step + 44
    parts = [
        f'<svg class="diagram" viewBox="{left:g} 0 {width:g} {height}" style="max-width: {width:g}px" role="img">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for a, b in arrows:
        y1, y2 = row[a] * step + 38, row[b] * step + 6
        middle = (y1 + y2) / 2
        path = f"M{x[a]:g} {y1}C{x[a]:g} {middle:g} {x[b]:g} {middle:g} {x[b]:g} {y2}"
        parts.append(f'<path class="edge" d="{path}" marker-end="url(#arrow)"/>')
    for name in names:
        y = row[name] * step + 6
        parts.append(f'<rect x="{x[name] - 65:g}" y="{y}" width="130" height="32" rx="5"/>')
        parts.append(f'<text x="{x[name]:g}" y="{y + 21}" text-anchor="middle">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _middle(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
