"""What pyproject.toml asks everybody to install is what the code imports; what hints ask for is what it has."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {"pillow": "PIL", "ale-py": "ale_py"}  # where they are not called like their package
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = [re.split(r"[<>=;\[ ]", requirement)[0] for requirement in PROJECT["dependencies"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dependency_is_imported(package: str) -> None:
    wanted = re.compile(rf"^\s*(import|from) {MODULES.get(package, package)}\b", re.MULTILINE)
    assert any(wanted.search(file.read_text()) for file in (ROOT / "src").rglob("*.py"))


def test_install_hints_are_for_a_clone() -> None:
    """The project is on no package index: `pip install 'playvirtual[ray]'` would find nothing, or a stranger's."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    hints = [hint for file in files for hint in re.findall(r"pip install[^`\n]*\[([^]]*)\]", file.read_text())]
    named = {extra for hint in hints for extra in hint.split(",") if not extra.startswith("{")}
    assert {"dmc", "ray", "tensorboard", "wandb", "video"} <= named <= PROJECT["optional-dependencies"].keys()
    assert not any("playvirtual[" in file.read_text() for file in files)
