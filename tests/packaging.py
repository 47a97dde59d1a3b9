"""What must be in a wheel and an sdist of this project; `python -m tests.packaging dist/*` checks built ones."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "playvirtual"
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")


def package_files() -> set[str]:
    """Every file of the package, as a wheel names it: modules, kernels, tables, templates, trained agents."""
    found = {str(file.relative_to(SOURCE.parent)) for file in SOURCE.rglob("*") if file.is_file()}
    return {name for name in found if "__pycache__" not in name}


def missing(archive: Path) -> list[str]:
    """The files that a built wheel or sdist should have and has not."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return sorted(package_files() - set(wheel.namelist()))
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    return sorted(({f"src/{name}" for name in package_files()} | set(IN_SDIST)) - names)


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        if lacking := missing(given):
            sys.exit(f"{given.name} lacks {', '.join(lacking)}")
        print(f"{given.name}: {given.stat().st_size:,} bytes, nothing is missing")
