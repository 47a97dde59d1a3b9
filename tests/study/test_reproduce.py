"""docs/reproduce.md has every table and figure of the paper and every experiment, and nothing that is not there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from playvirtual import published
from playvirtual.config.hyperparameters import METHODS
from playvirtual.study.sweep.experiments import EXPERIMENTS

PAGE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in PAGE.splitlines() if line[:2] == "| "]
BODY = ROWS[2:]  # without the header and its rule
TABLES, FIGURES = range(1, 17), range(1, 3)  # as the paper numbers them


def row_of(label: str) -> list[str]:
    (found,) = (row for row in BODY if f"(`{label}`)" in row[0])
    return found


def test_the_list_of_labels_has_every_number_once() -> None:
    numbers = [entry.number for entry in published.labels()]
    expected = [*(f"Table {n}" for n in TABLES), *(f"Figure {n}" for n in FIGURES), "Algorithm 1"]
    assert sorted(numbers) == sorted(expected)
    assert len({entry.label for entry in published.labels()}) == len(numbers)


@pytest.mark.parametrize("entry", published.labels(), ids=lambda entry: entry.label)
def test_every_table_and_figure_stands_on_the_page_with_its_command(entry: published.Label) -> None:
    paper, command, numbers, beside, _ = row_of(entry.label)
    assert paper.startswith(f"{entry.number}, ")
    assert beside
    if entry.label not in ("fig:framework", "algorithm") and "hyperparam" not in entry.label:
        assert "playvirtual sweep" in command
        assert "`" in numbers or numbers == "none printed"


def test_the_page_has_no_label_that_the_paper_has_not() -> None:
    on_page = re.findall(r"\(`((?:table|fig):\w+|algorithm)`\)", PAGE)
    assert sorted(on_page) == sorted(entry.label for entry in published.labels())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_stands_in_the_row_of_what_it_reproduces(name: str) -> None:
    found = [row for row in BODY if re.search(rf"playvirtual sweep {name}(?![\w-])", row[1])]
    source = EXPERIMENTS[name].source
    if source == "this project":
        assert f"`playvirtual sweep {name}`" in PAGE
        return
    assert source.startswith(("Table ", "Figure ", "Appendix "))
    paper = f"Text, {source.split()[1].rstrip(',')}" if source.startswith("Appendix") else f"{source},"
    mine = [row for row in found if row[0].startswith(paper)]
    assert len(mine) == 1, (name, source)
    (row,) = mine
    for method in {r.method for r in EXPERIMENTS[name].rows}:
        assert f"`{method}`" in row[3], method
    for study in {r.published[0] for r in EXPERIMENTS[name].rows if r.published}:
        assert f"`{study}`" in row[2], study
    if any(r.published for r in EXPERIMENTS[name].rows):
        assert f"`ablation-{name}`" in row[3]
    assert (f"preset `{EXPERIMENTS[name].preset}`" in row[3]) == (EXPERIMENTS[name].preset != "paper")
    assert ("probed by the sweep" in row[3]) == bool(EXPERIMENTS[name].probe)


def test_commands_files_and_methods_of_the_page_exist() -> None:
    assert set(re.findall(r"playvirtual sweep ([\w-]+)", PAGE)) == set(EXPERIMENTS)
    for file in set(re.findall(r"`(\w+\.csv)`", PAGE)):
        assert files("playvirtual.published").joinpath(file).is_file()
    studies = {a.study for a in published.ablations()} | {a.analysis for a in published.analyses()}
    assert studies <= set(re.findall(r"`([^`]+)`", " ".join(row[2] for row in BODY)))
    methods = {word for row in BODY for word in re.findall(r"`((?:rl|spr|playvirtual)[\w-]*)`", row[3])}
    assert methods == set(METHODS)
