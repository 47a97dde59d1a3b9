"""What two runs that are one and the same have in common."""

import json
from pathlib import Path

from playvirtual.runs import checkpoint


def same(a: Path, b: Path) -> None:
    """Every file that both runs should share has the same bytes; clocks and positions in timing differ."""
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    one, two = checkpoint.newest(a), checkpoint.newest(b)
    assert one.name == two.name
    names = {p.name for p in one.iterdir()}
    assert names == {p.name for p in two.iterdir()}
    for name in names - {"state.json", "manifest.json"}:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    trees = [json.loads((path / "state.json").read_bytes())["tree"] for path in (one, two)]
    assert trees[0] == trees[1]
