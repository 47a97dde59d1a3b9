"""What the site adds to Markdown, and that its checks find what is wrong."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from pathlib import Path

import pytest

from playvirtual.method.virtual import VirtualTrajectories, prediction_loss

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("ziamath", reason="ziamath is not installed")
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, get_files

from tests.docs.test_site import broken_links, pages_of

ROOT = Path(__file__).parents[2]
MARKUP = runpy.run_path(str(ROOT / "docs" / "hooks" / "markup.py"))
REPOSITORY = runpy.run_path(str(ROOT / "docs" / "hooks" / "repository.py"))
NOTEBOOKS = runpy.run_path(str(ROOT / "docs" / "hooks" / "notebooks.py"))


def test_an_excerpt_is_the_code_of_the_function_without_its_docstring() -> None:
    shown = MARKUP["on_page_markdown"]("```python\n# source: playvirtual.method.virtual:prediction_loss\n```")
    code = shown.removeprefix("```python\n").removesuffix("\n```")
    assert code.startswith("# playvirtual/method/virtual.py\ndef prediction_loss(")
    expected = ast.parse(inspect.getsource(prediction_loss)).body[0]
    assert isinstance(expected, ast.FunctionDef)
    del expected.body[0]
    assert ast.dump(ast.parse(code).body[0]) == ast.dump(expected)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("λ_cyc · L_cyc", "λ<sub>cyc</sub> · L<sub>cyc</sub>"),
        ("λ_cyc^max", "λ<sub>cyc</sub><sup>max</sup>"),
        ("Σ_k d(z_t)", "Σ<sub>k</sub> d(z<sub>t</sub>)"),
        ("z̃_{t+K−1}, ẑ_t, z′_t", "z̃<sub>t+K−1</sub>, ẑ<sub>t</sub>, z′<sub>t</sub>"),
        ("up_n_down, docs/a_b, on_step", "up_n_down, docs/a_b, on_step"),
        ('<a href="x/z_t">z_t</a>', '<a href="x/z_t">z<sub>t</sub></a>'),
        ("<code>z_t</code>", "<code>z_t</code>"),
        ("<code>a --env-arg b</code>", '<code>a <span class="flag">--env-arg</span> b</code>'),
        ("<pre><code>--seed 1 z_t</code></pre> z_t", "<pre><code>--seed 1 z_t</code></pre> z<sub>t</sub>"),
    ],
)
def test_indices_are_lowered_outside_of_code_and_flags_kept_together_within(text: str, shown: str) -> None:
    assert MARKUP["on_page_content"](text) == shown


def test_an_excerpt_of_a_method_names_its_class_and_is_not_indented() -> None:
    shown = MARKUP["excerpt"]("playvirtual.method.virtual", "VirtualTrajectories.project")
    assert shown.startswith("# playvirtual/method/virtual.py: VirtualTrajectories\ndef project(self, z: Tensor)")
    assert shown.splitlines()[-1].strip() in inspect.getsource(VirtualTrajectories.project)


@pytest.mark.parametrize("name", ["gone", "VirtualTrajectories.gone"])
def test_an_excerpt_of_what_is_gone_ends_the_build(name: str) -> None:
    with pytest.raises(PluginError, match=f"virtual:{name} is asked for"):
        MARKUP["excerpt"]("playvirtual.method.virtual", name)


def test_equations_are_drawn_and_keep_their_latex() -> None:
    shown = MARKUP["on_page_markdown"]("with $`z_t < 1`$ in it\n\n```math\n\\sum_{k=1}^{K} z_k\n```\n")
    inline, block = re.findall(r'<span class="math" role="img" aria-label="(.*?)"><svg', shown)
    assert (inline, block) == ("z_t &lt; 1", "\\sum_{k=1}^{K} z_k")
    assert '<div class="equation"><span' in shown
    assert "$`" not in shown
    assert "```" not in shown


def test_a_diagram_has_every_box_below_what_points_to_it() -> None:
    svg = MARKUP["drawing"](MARKUP["edges"]("  a --> b\n  b --> c\n  a --> c\n  a --> d\n"))
    height = {name: float(y) for y, name in re.findall(r'<text x="[-\d.]+" y="(\d+)"[^>]*>(\w)</text>', svg)}
    assert height["a"] < height["b"] == height["d"] < height["c"]
    with pytest.raises(PluginError, match="cycle"):
        MARKUP["drawing"]([("a", "b"), ("b", "a")])
    with pytest.raises(PluginError, match="not of the form"):
        MARKUP["edges"]("a -.-> b")


def test_files_that_pages_name_are_added_and_pages_that_the_navigation_does_not_name_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    monkeypatch.setattr(config.plugins, "_current_plugin", None, raising=False)  # as in a build
    files = get_files(config)
    files.append(File.generated(config, "new.md", content="# New"))
    listed = REPOSITORY["on_files"](files, config)
    assert config.nav is not None
    assert "new.md" in config.nav[-1]["More"]
    assert "faq.md" not in config.nav[-1]["More"]
    assert listed.get_file_from_path("repository/SECURITY.md") is not None  # the navigation names it
    assert listed.get_file_from_path("repository/results/dmc/again.png") is not None  # docs/results.md shows it
    assert listed.get_file_from_path("repository/results/atari/provenance.toml") is not None  # a page of it links to it
    assert listed.get_file_from_path("repository/README.md") is None


def test_outputs_of_a_notebook_are_text_without_colors_and_pictures_with_names() -> None:
    images: dict[str, bytes] = {}
    assert NOTEBOOKS["shown"]({"text": ["\x1b[31mred\x1b[0m\n"]}, "n", images) == "```text\nred\n```"
    assert NOTEBOOKS["shown"]({"data": {"image/png": "AAE="}}, "n", images).endswith("(n.png)")
    assert images == {"n.png": b"\x00\x01"}


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    links = (
        '<a href="../b.html#there">1</a><a href="../b.html#gone">2</a><img src="gone.png"><a href="https://x.y">3</a>'
    )
    (tmp_path / "a" / "index.html").write_text(links)
    (tmp_path / "b.html").write_text('<h1 id="there"><a href="a/">back</a></h1><a href="c/">4</a>')
    found = broken_links(tmp_path, pages_of(tmp_path))
    assert found == ["a/index.html: ../b.html#gone", "a/index.html: gone.png", "b.html: c/"]
