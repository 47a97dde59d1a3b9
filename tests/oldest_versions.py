"""The oldest versions that pyproject.toml allows, as lines for `pip install -c`: `python -m tests.oldest_versions`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LARGE = "torch"  # its older builds bring gigabytes of CUDA: `make test-oldest` takes that of constraints.txt


def oldest() -> Iterator[str]:
    """name==version for every requirement that has a lower bound, of the package and of its extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    for requirement in chain(project["dependencies"], *project["optional-dependencies"].values()):
        found = re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement)
        if found and found[1] != LARGE:
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(oldest()))
