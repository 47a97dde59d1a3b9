"""What the objective adds to its hosts: at most 60 lines of code in each example."""

import io
import tokenize
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
if not EXAMPLES.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)


def added_lines(text: str) -> list[str]:
    """The lines between `# PlayVirtual: begin` and `# PlayVirtual: end` and those that end with `# PlayVirtual`.

    Blank lines, comments and docstrings do not count.
    """
    code = set()
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type not in layout and not docstring:
            code.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        inside = (inside or line.strip() == "# PlayVirtual: begin") and line.strip() != "# PlayVirtual: end"
        if number in code and (inside or line.endswith("  # PlayVirtual")):
            found.append(line)
    return found


@pytest.mark.parametrize("name", ["sb3_playvirtual.py", "cleanrl_style_dqn.py"])
def test_the_objective_adds_at_most_60_lines(name: str) -> None:
    lines = added_lines((EXAMPLES / name).read_text(encoding="utf-8"))
    assert any("PlayVirtualLoss(" in line for line in lines)
    assert any("sample_sequences(" in line for line in lines)
    assert any("update_targets()" in line for line in lines)
    assert len(lines) <= 60


def test_how_lines_are_counted() -> None:
    docstring = '    """Words.\n\n    More.\n    """\n'
    text = f"import a  # PlayVirtual\nimport b\n# PlayVirtual: begin\ndef f():\n{docstring}"
    text += "\n    # why\n    return (\n        1\n    )\n# PlayVirtual: end\nc = 1\n"
    assert added_lines(text) == ["import a  # PlayVirtual", "def f():", "    return (", "        1", "    )"]
