"""Every notebook runs from top to bottom, and is committed with what its cells gave."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANG

pytest.importorskip("ipykernel", reason="ipykernel is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORT = {"first_steps": {"STEPS": 420, "DQN_STEPS": 200}}  # enough for every cell to have something to show


def cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shorten(notebook: Any, numbers: dict[str, int]) -> None:
    """Writes smaller numbers into the cell that is tagged `parameters`."""
    (cell,) = (c for c in cells(notebook) if "parameters" in c["metadata"].get("tags", ()))
    for name, value in numbers.items():
        cell["source"], count = re.subn(rf"^{name} = [\d_]+", f"{name} = {value}", cell["source"], flags=re.MULTILINE)
        assert count == 1, name


@pytest.mark.parametrize(
    "short",
    [
        pytest.param(True, id="short", marks=pytest.mark.slow(seconds=15)),
        pytest.param(False, id="whole", marks=[pytest.mark.slow(seconds=60), pytest.mark.long]),
    ],
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    if short:
        shorten(notebook, SHORT[path.stem])
    client = nbclient.NotebookClient(notebook, timeout=HANG, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [kind for cell in cells(notebook) for output in cell["outputs"] for kind in output.get("data", {})]
    assert shown.count("image/png") == 2
    assert shown.count("image/gif") == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_the_outputs_of_one_run(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert not [output for cell in cells(notebook) for output in cell["outputs"] if output["output_type"] == "error"]
    assert path.stat().st_size < 1_000_000
