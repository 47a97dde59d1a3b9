"""The drawings in docs/images: what they name is in the code, and their labels lie inside of the picture."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DRAWINGS = [ROOT / "docs" / "images" / name for name in ("method.svg", "data-flow.svg")]
SVG = "{http://www.w3.org/2000/svg}"


def labels(drawing: Path) -> list[tuple[float, float, str]]:
    """(x, y, text) of every label."""
    texts = ElementTree.parse(drawing).getroot().iter(f"{SVG}text")
    return [(float(t.attrib["x"]), float(t.attrib["y"]), "".join(t.itertext()).replace("\u200b", "")) for t in texts]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_has_words_for_those_who_cannot_see_it_and_colors_for_dark_pages(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    assert root.findtext(f"{SVG}title")
    assert len(str(root.findtext(f"{SVG}desc"))) > 100
    assert "@media (prefers-color-scheme: dark)" in str(root.findtext(f"{SVG}style"))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert width <= 400  # pixels of a narrow screen, where text of 11.5 must be legible
    assert all(0 < x < width and 12 < y < height for x, y, _ in labels(drawing))


def test_no_label_stands_on_another() -> None:
    for drawing in DRAWINGS:
        found = labels(drawing)
        for number, (x, y, text) in enumerate(found):
            for other_x, other_y, other in found[number + 1 :]:
                assert abs(y - other_y) >= 12 or abs(x - other_x) >= 20, (drawing.name, text, other)


def test_the_drawing_of_the_data_names_what_the_rooms_have() -> None:
    said = " ".join(text for _, _, text in labels(DRAWINGS[1]))
    for name, room in (
        ("VectorEnv", "envs"),
        ("ReplayBuffer", "replay"),
        ("BatchSampler", "replay"),
        ("Agent", "agents"),
        ("SelfPrediction", "method"),
        ("Trainer", "training"),
        ("Runner", "training"),
    ):
        assert name in said
        sources = "".join(path.read_text() for path in (ROOT / "src" / "playvirtual" / room).rglob("*.py"))
        assert re.search(rf"^class {name}\b", sources, re.MULTILINE), f"{room}/ has no {name}"
