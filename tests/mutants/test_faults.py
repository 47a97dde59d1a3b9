"""The harness of `make mutants` on made-up code, and that every listed fault still applies to ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.faults import Fault, read_faults

HERE = Path(__file__).parent
CODE = "def double(x):\n    return 2 * x\n"
TEST = "from playvirtual.doubling import double\n\ndef test_double():\n    assert double(3) == 6\n"
FAULT = """
[[fault]]
name = "{name}"
file = "doubling.py"
find = "{find}"
replace = "{replace}"
"""


def test_every_fault_applies_to_the_code_as_it_is() -> None:
    faults = [(listed, listed.problem()) for listed in read_faults()]
    problems = [f"{listed.group}.toml: {listed.name}: {problem}" for listed, problem in faults if problem]
    assert not problems, "adapt these in tests/mutants/faults:\n" + "\n".join(problems)


def test_the_lists_are_large_and_few_faults_are_called_equivalent() -> None:
    faults = read_faults()
    assert len(faults) >= 120
    assert sum(bool(listed.equivalent) for listed in faults) <= 0.03 * len(faults)
    rooms = {listed.file.split("/")[0] for listed in faults}
    assert rooms >= {"method", "agents", "replay", "training", "envs", "study"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function, its test and this harness; its lists are empty."""
    source = tmp_path / "src" / "playvirtual"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "doubling.py").write_text(CODE)
    (tmp_path / "test_double.py").write_text(TEST)
    harness = tmp_path / "tests" / "mutants"
    shutil.copytree(HERE, harness, ignore=shutil.ignore_patterns("*.toml", "test_*", "__pycache__"))
    (harness.parent / "__init__.py").touch()
    (harness / "faults").mkdir(exist_ok=True)
    trials = harness / "trials.py"
    text = trials.read_text()
    imports = re.search(r"^SLOW_IMPORTS = .*$", text, re.MULTILINE)
    assert imports is not None
    trials.write_text(text.replace(imports[0], 'SLOW_IMPORTS = ("pytest",)'))  # PyTorch is of no use to its one test
    return tmp_path


def run_harness(project: Path, faults: list[tuple[str, str, str]], equivalent: str) -> subprocess.CompletedProcess[str]:
    """The command on a list of (name, find, replace), the last of which is said to be equivalent."""
    entries = [FAULT.format(name=name, find=find, replace=replace) for name, find, replace in faults]
    content = 'tests = ["test_double.py"]\n' + "".join(entries) + f'equivalent = "{equivalent}"\n'
    (project / "tests" / "mutants" / "faults" / "made-up.toml").write_text(content)
    command = [sys.executable, "-m", "tests.mutants", "--table", "table.md"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_harness_tells_what_was_caught_what_passed_and_what_no_longer_applies(project: Path) -> None:
    faults = [
        ("thrice", "2 * x", "3 * x"),
        ("unseen", "return 2 * x", "return x + x"),
        ("no import", "def double", "import nowhere\\n\\ndef double"),
        ("gone", "4 * x", "5 * x"),
        ("the same", "2 * x", "x * 2"),
    ]
    done = run_harness(project, faults, "a product has no order")
    assert done.returncode == 1, done.stderr
    assert "1 of 4 noticed, 1 explained as equivalent" in done.stdout
    page = (project / "table.md").read_text()
    assert "5 faults: 1 of 4 noticed, 1 explained as equivalent." in page
    for row in (
        "| thrice | `doubling.py` | `test_double.py::test_double` |",
        "| unseen | `doubling.py` | **passed** |",
        "| no import | `doubling.py` | **broken** test_double.py |",
        "| gone | `doubling.py` | **moved** the text to replace stands 0 times in doubling.py |",
        "| the same | `doubling.py` | equivalent: a product has no order |",
    ):
        assert row in page
    assert (project / "src" / "playvirtual" / "doubling.py").read_text() == CODE  # the faults were put into copies


@pytest.mark.slow
def test_the_exit_status_is_0_when_all_are_noticed_and_tests_must_pass_without_a_fault(project: Path) -> None:
    faults = [("thrice", "2 * x", "3 * x"), ("the same", "2 * x", "x * 2")]
    assert run_harness(project, faults, "a product has no order").returncode == 0
    (project / "test_double.py").write_text(TEST.replace("6", "7"))
    done = run_harness(project, faults, "a product has no order")
    assert done.returncode == 1
    assert "they must pass before a fault says anything; test_double.py::test_double" in done.stderr


def test_why_a_fault_does_not_apply_is_said() -> None:
    def problem(file: str = "errors.py", find: str = '"""', replace: str = "", test: str = "tests/mutants") -> str:
        return Fault("made-up", "a fault", file, find, replace, (test,)).problem()

    assert problem(file="tripling.py") == "tripling.py does not exist"
    assert "times in errors.py" in problem()
    assert "does not compile" in problem(find="from __future__ import annotations", replace="def (")
    assert "tests/none.py does not exist" in problem(
        find="from __future__ import annotations", replace="", test="tests/none.py"
    )


def test_bad_lists_are_refused(tmp_path: Path) -> None:
    entry = '[[fault]]\nname = "n"\nfile = "f.py"\nfind = "a"\nreplace = "{}"\n'
    for content, message in [
        ('tests = ["t.py"]\n' + entry.format("a"), "changes nothing"),
        (entry.format("b"), "has no tests"),
        ('tests = ["t.py"]\n' + entry.format("b") * 2, "stands twice"),
        ('tests = ["t.py"]\n' + entry.format("b") + "line = 3\n", "line"),
    ]:
        (tmp_path / "list.toml").write_text(content)
        with pytest.raises(ValueError, match=message):
            read_faults(tmp_path)
