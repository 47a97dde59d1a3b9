"""Folders of finished runs that were never trained."""

from __future__ import annotations

import json
from pathlib import Path

from playvirtual.config.build import build
from playvirtual.config.record import to_dict


def write_run(path: Path, task: str, method: str, seed: int, score: float, **options: object) -> None:
    """What a finished run leaves: its configuration, one evaluation of that score, a minute of time."""
    config = to_dict(build(task, method=method, seed=seed, **options))
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**config, "versions": {"torch": "2.13.0"}}))
    line = {"step": config["steps"], "mean": score, "returns": [score]}
    (path / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    (path / "timing.jsonl").write_text(json.dumps({"step": config["steps"], "seconds": 60.0, "update": 30.0}) + "\n")
