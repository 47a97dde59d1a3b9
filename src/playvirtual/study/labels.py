"""Names of settings as a plot has room for them: wrapped, shortened in the middle, and distinct."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

WIDTH = 34  # characters of a line


def labels(names: Sequence[str], lines: int = 4) -> list[str]:
    """Each name in at most so many lines; the ones that would look alike are numbered. Safe for Matplotlib."""
    shown = [_fit(name, lines) for name in names]
    often, met = Counter(shown), Counter[str]()
    for at, text in enumerate(shown):
        if often[text] > 1:
            met[text] += 1
            shown[at] = f"{text} ({met[text]})"
    return [plain(text) for text in shown]


def plain(text: str) -> str:
    """Without what Matplotlib would take for mathematics, and without control characters but the end of a line."""
    return re.sub(r"[\x00-\x09\x0b-\x1f]", " ", text).replace("$", r"\$")


def _fit(name: str, lines: int) -> str:
    text = re.sub(r"[\x00-\x1f]", " ", name)
    for keep in range(min(len(text), WIDTH * lines), 0, -1):
        head = -(-keep // 2)
        shown = _wrap(text if keep >= len(text) else f"{text[:head]}…{text[len(text) - keep // 2 :]}")
        if len(shown) <= lines:
            return "\n".join(shown)
    return text


def _wrap(text: str) -> list[str]:
    """Lines that do not part a name from its value: "K = 3" stays whole."""
    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return [
        line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(whole, WIDTH, break_on_hyphens=False)
    ] or [""]
