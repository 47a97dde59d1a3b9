"""What agents cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from playvirtual.errors import InputError
from playvirtual.study.complexity import parameters
from playvirtual.training import checkpoint


def test_parameters_are_those_of_the_newest_complete_checkpoint(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["toy/catch"], run)
    wanted = parameters(run)
    newest = checkpoint.newest(run)
    for name in ("step-000000200.partial", "step-000000300.damaged"):  # later, and of another number of actions
        other = newest.with_name(name)
        shutil.copytree(newest, other)
        record = json.loads((other / "agent.json").read_text())
        (other / "agent.json").write_text(json.dumps({**record, "actions": {"n": 18}}))
    assert parameters(run) == wanted
    (newest / "agent.json").write_text("{}")
    with pytest.raises(InputError, match=r"agent\.json' is damaged"):
        parameters(run)
    shutil.rmtree(newest)
    with pytest.raises(InputError, match="has no checkpoint yet"):
        parameters(run)
