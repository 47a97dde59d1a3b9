"""The version of this program that is on the path, for cpu_versions.py: its settings, or one training of it.

python version_worker.py settings TASK:METHOD …     prints them by row as JSON, or {"error": why not}
python version_worker.py train TASK:METHOD SETTINGS says when it is ready, then steps/s for each line (seconds) of stdin
It uses nothing that the first version does not have.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "min_size": 400, "steps": 100_000, "seed": 1}
DECIDED = ("task", "method", "preset")  # named by the row
WORDS = "settings TASK:METHOD …, or train TASK:METHOD SETTINGS"
WARM = 40  # agent steps with learning before measuring


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its name, as `build` takes it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found |= flat(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return {name: value for name, value in found.items() if name not in DECIDED}


def configured(row: str, options: dict[str, Any]) -> Any:
    """The configuration of a row."""
    from playvirtual.presets import build

    task, _, method = row.partition(":")
    return build(task, method=method, **options)


def settings(rows: list[str]) -> None:
    """Says every row's settings, or which one this version refuses."""
    from playvirtual.errors import InputError

    try:
        say({row: flat(configured(row, FIXED)) for row in rows})
    except InputError as error:
        say({"error": str(error)})


def train(row: str, given: dict[str, Any]) -> None:
    """One training with those of the given settings that this version has."""
    from playvirtual.training.loop import Training

    own = flat(configured(row, FIXED))
    config = configured(row, {name: value for name, value in given.items() if name in own})
    training = Training(config)
    for _ in range(config.replay.min_size + WARM):
        training.interact()
        training.learn()
    say({"ignored": sorted(set(given) - set(own)), "unasked": sorted(set(own) - set(given))})
    for line in sys.stdin:
        first, start = training.step, time.monotonic()
        while time.monotonic() < start + float(line):
            training.interact()
            training.learn()
        say((training.step - first) / (time.monotonic() - start))


def say(record: Any) -> None:
    """One line of JSON for the process that waits."""
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["settings", *rows]:
            settings(rows)
        case ["train", row, given]:
            train(row, json.loads(given))
        case ["-h" | "--help"]:
            print(f"a helper of cpu_versions.py, which see; its words: {WORDS}")
        case words:
            print(f"error: words: {' '.join(words)!r} is not allowed; allowed: {WORDS}", file=sys.stderr)
            sys.exit(2)
