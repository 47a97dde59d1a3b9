"""The wheel has everything that the package reads: found out from the build back end's own list, without a build."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging import IN_SDIST, ROOT, missing, package_files

KINDS = {  # that the package reads, and which a wheel could lose without any import failing
    ".cu": "kernels/",
    ".cuh": "kernels/",
    ".csv": "published/",
    ".md": "share/templates/",
    ".safetensors": "trained/",
}


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    builder = wheel.WheelBuilder(str(ROOT))
    listed = {file.distribution_path for file in builder.recurse_included_files()}
    assert package_files() - listed == set()
    assert not [name for name in listed if name.startswith("tests")]


@pytest.mark.parametrize("suffix", KINDS)
def test_the_package_has_data_of_each_kind(suffix: str) -> None:
    """What `package_files` compares is not empty."""
    assert [name for name in package_files() if name.endswith(suffix) and KINDS[suffix] in name]


def test_a_file_that_a_build_lost_is_named(tmp_path: Path) -> None:
    names = package_files() - {"playvirtual/published/labels.csv"}
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
    assert missing(tmp_path / "a.whl") == ["playvirtual/published/labels.csv"]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        for name in (*(f"src/{name}" for name in package_files()), *IN_SDIST[1:]):
            sdist.addfile(tarfile.TarInfo(f"playvirtual-0.1.0/{name}"))
    assert missing(tmp_path / "a.tar.gz") == ["pyproject.toml"]
