"""Imports point downwards: every room of `src/playvirtual` imports rooms below it alone.

`python -m tests.test_import_graph` prints the graph as docs/architecture.md shows it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import playvirtual

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "playvirtual"
PAGE = ROOT / "docs" / "architecture.md"

# Modules that every room may import.
BASE = ("errors", "calls", "options", "device", "messages", "extensions", "files", "published")
# Room → the rooms it may import besides `base`. Everything stands above what it imports.
BELOW: dict[str, tuple[str, ...]] = {
    "base": (),
    "kernels": (),
    "method": ("kernels",),
    "envs": (),
    "replay": ("kernels",),
    "config": ("envs",),
    "agents": ("config", "method", "replay", "kernels"),
    "runs": ("agents", "envs"),
    "training": ("runs",),
    "bench": ("training",),
    "api": ("bench",),
    "study": ("api",),
    "share": ("api",),
    "playvirtual": ("share",),  # the names that people import
    "cli": ("study", "playvirtual"),
}


class Import(NamedTuple):
    """One import of a module of this project by another one."""

    file: str
    line: int
    room: str
    imported: str  # the room it is from
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.room} imports {self.imported} ({self.module})"


def room(module: str) -> str:
    """The room of "playvirtual.agents.rainbow": agents; of a module of the top level its own name, or base."""
    name = module.split(".")[1] if "." in module else ""
    if name in BASE:
        return "base"
    return {"": "playvirtual", "__init__": "playvirtual", "__main__": "cli"}.get(name, name)


def runtime_imports(tree: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(line, module, imported names) of every import, those in functions included, those for type checkers not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (found for other in node.orelse for found in runtime_imports(other))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield node.lineno, node.module or "", tuple(alias.name for alias in node.names)
        else:
            yield from runtime_imports(node)


def project_imports(source: Path = SOURCE) -> list[Import]:
    """Every import between two rooms that stands in the source."""
    found = []
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        own = room(".".join(["playvirtual", *inside.with_suffix("").parts]))
        for line, module, names in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
            if module.partition(".")[0] != "playvirtual":
                continue
            # `from playvirtual import envs` imports a room by its name.
            whole = module != "playvirtual" or not names
            modules = [module] if whole else [f"playvirtual.{name}" for name in names]
            for imported in modules:
                path_of = source.joinpath(*imported.split(".")[1:])
                is_module = path_of.is_dir() or path_of.with_suffix(".py").exists()
                other = room(imported) if is_module else "playvirtual"
                if other != own:
                    found.append(Import(f"src/playvirtual/{inside}", line, own, other, imported))
    return found


def allowed(upper: str) -> set[str]:
    """The rooms that stand below a room."""
    return {"base"}.union(*({lower, *allowed(lower)} for lower in BELOW[upper]))


def upward(imports: list[Import]) -> list[Import]:
    """The imports of a room that does not stand below."""
    return [i for i in imports if i.imported not in allowed(i.room)]


def graph() -> set[tuple[str, str]]:
    """(room, room it imports); the package imports a name from its room when somebody first asks for the name."""
    names = {getattr(playvirtual, name).__module__ for name in playvirtual.__all__}
    return {(i.room, i.imported) for i in project_imports()} | {("playvirtual", room(module)) for module in names}


def cycle(edges: set[tuple[str, str]]) -> list[str]:
    """Rooms that import each other in a circle; empty if there are none."""

    def follow(path: list[str]) -> list[str]:
        for upper, lower in sorted(edges):
            if upper == path[-1]:
                found = [*path, lower] if lower in path else follow([*path, lower])
                if found:
                    return found
        return []

    return next((found for start, _ in sorted(edges) if (found := follow([start]))), [])


def drawing() -> str:
    """The graph in Mermaid's language. Arrows to `base` are left out, and those that follow from two others."""
    edges = {(upper, lower) for upper, lower in graph() if lower != "base"}

    def reachable(start: str) -> set[str]:
        direct = {lower for upper, lower in edges if upper == start}
        return direct.union(*(reachable(lower) for lower in direct))

    direct = [
        (upper, lower)
        for upper, lower in edges
        if not any(lower in reachable(between) for start, between in edges if start == upper)
    ]
    order = list(BELOW)
    direct.sort(key=lambda edge: (-order.index(edge[0]), -order.index(edge[1])))
    return "\n".join(["graph TD", *(f"    {upper} --> {lower}" for upper, lower in direct)])


def test_every_room_has_its_place() -> None:
    assert {name for edge in graph() for name in edge} == set(BELOW)


def test_no_import_points_upwards() -> None:
    found = upward(project_imports())
    assert not found, "\n".join(map(str, found))
    assert all(lower in allowed(upper) for upper, lower in graph())


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert not cycle(graph())


def test_the_method_needs_kernels_and_torch_alone() -> None:
    """Nothing of the project but kernels, of the outside but torch (kernels: and Triton), numpy and Python itself."""
    for name, own in (("method", {"playvirtual"}), ("kernels", {"playvirtual", "triton"})):
        for path in (SOURCE / name).rglob("*.py"):
            for line, module, _ in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
                package = module.partition(".")[0]
                assert package in {"torch", "numpy", *own, *sys.stdlib_module_names}, f"{path}:{line}: {module}"
    assert {lower for upper, lower in graph() if upper == "method"} == {"kernels"}


def test_a_room_with_more_than_a_dozen_modules_has_rooms_of_its_own() -> None:
    for folder in (SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())):
        modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= 12, f"{folder.relative_to(SOURCE)}: {', '.join(sorted(modules))}"


def test_the_drawing_in_the_docs_is_the_graph() -> None:
    assert drawing() in PAGE.read_text(encoding="utf-8"), "python -m tests.test_import_graph draws it"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("replay/wrong.py", "import torch\nfrom playvirtual.agents import agent\n", 2),
        ("envs/wrong.py", "def late():\n    import playvirtual.config.schema\n", 2),
        ("runs/wrong.py", "from playvirtual import training\n", 1),
        ("runs/wrong.py", "\n\nfrom playvirtual import train\n", 3),
        ("envs/wrong.py", "import playvirtual as pv\n", 1),
        (
            "method/wrong.py",
            "from playvirtual.errors import InputError\nimport playvirtual.replay.buffer\n",
            2,
        ),
    ],
)
def test_an_upward_import_is_named_by_file_and_line(tmp_path: Path, file: str, text: str, line: int) -> None:
    for package in ("replay", "envs", "runs", "method", "agents", "config", "training"):
        (tmp_path / package).mkdir()
    for module in ("agents/agent.py", "config/schema.py", "errors.py"):
        (tmp_path / module).touch()
    (tmp_path / file).write_text(text)
    (wrong,) = upward(project_imports(tmp_path))
    assert str(wrong).startswith(f"src/playvirtual/{file}:{line}: {file.partition('/')[0]} imports ")


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from playvirtual.cli import main\n"
    (tmp_path / "envs").mkdir()
    (tmp_path / "cli").mkdir()
    (tmp_path / "envs" / "fine.py").write_text(text)
    assert project_imports(tmp_path) == []


def test_a_circle_of_rooms_is_found() -> None:
    assert cycle({("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")}) == ["a", "b", "c", "a"]
    assert cycle({("a", "b"), ("b", "c"), ("a", "c")}) == []


if __name__ == "__main__":
    print(drawing())
