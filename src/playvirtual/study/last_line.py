"""The newest record of a log that another process may be writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TAIL = 8192  # bytes that surely hold the last line of metrics.jsonl


def last_line(path: Path) -> dict[str, Any]:
    """The last whole JSON line of a file that may be growing, {} if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            for line in reversed(file.read().splitlines()):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                return record if isinstance(record, dict) else {}
    except OSError:
        pass
    return {}
