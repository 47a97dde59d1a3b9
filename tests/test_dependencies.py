"""What pyproject.toml asks everybody to install is what the code imports."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {"pillow": "PIL", "ale-py": "ale_py"}  # where they are not called like their package
PACKAGES = [
    re.split(r"[<>=;\[ ]", requirement)[0]
    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dependency_is_imported(package: str) -> None:
    wanted = re.compile(rf"^\s*(import|from) {MODULES.get(package, package)}\b", re.MULTILINE)
    assert any(wanted.search(file.read_text()) for file in (ROOT / "src").rglob("*.py"))
