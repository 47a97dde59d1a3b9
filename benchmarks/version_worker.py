"""The version of this program that is on the path, for cpu_versions.py: its settings, or one training of it.

python version_worker.py settings TASK:METHOD …     prints them by row as JSON, or {"error": why not}
python version_worker.py train TASK:METHOD SETTINGS says when it is ready, then steps/s for each line (seconds) of stdin
It runs versions from before and after the options and modules were renamed; settings are exchanged in the new names.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "learning_starts": 400, "steps": 100_000, "seed": 1}
DECIDED = ("task", "method", "preset")  # named by the row
WORDS = "settings TASK:METHOD …, or train TASK:METHOD SETTINGS"
WARM = 40  # agent steps with learning before measuring

BEFORE_RENAMES = find_spec("playvirtual.presets") is not None
OLD_NAMES = {
    "learning_starts": "min_size",
    "eval_every": "every",
    "eval_episodes": "episodes",
    "eval_envs": "lanes",
    "eval_epsilon": "epsilon",
    "kernel_sizes": "filters",
    "compile": "capture",
    "cycle_trains_forward": "cycle_trains_forward",
}
NEW_NAMES = {old: new for new, old in OLD_NAMES.items()}
OLD_COMPILE = {"off": "off", "cudagraph": "graph", "full": "compile"}
NEW_COMPILE = {old: new for new, old in OLD_COMPILE.items()}


def to_own(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in the names and meanings of the version on the path."""
    if not BEFORE_RENAMES:
        return settings
    own = {OLD_NAMES.get(name, name): value for name, value in settings.items()}
    if "capture" in own:
        own["capture"] = OLD_COMPILE[own["capture"]]
    if "target_tau" in own:  # was what the target network keeps, is what it takes
        own["target_tau"] = 1.0 - own["target_tau"]
    return own


def from_own(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the version on the path in the new names and meanings."""
    if not BEFORE_RENAMES:
        return settings
    new = {NEW_NAMES.get(name, name): value for name, value in settings.items()}
    new["compile"] = NEW_COMPILE[new["compile"]]
    if "target_tau" in new:
        new["target_tau"] = 1.0 - new["target_tau"]
    return new


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its name, as `build` takes it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found |= flat(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return {name: value for name, value in found.items() if name not in DECIDED}


def configured(row: str, settings: dict[str, Any]) -> Any:
    """The configuration of a row."""
    if BEFORE_RENAMES:
        from playvirtual.presets import build
    else:
        from playvirtual.config.build import build

    task, _, method = row.partition(":")
    return build(task, method=method, **to_own(settings))


def settings(rows: list[str]) -> None:
    """Says every row's settings, or which one this version refuses."""
    from playvirtual.errors import InputError

    try:
        say({row: from_own(flat(configured(row, FIXED))) for row in rows})
    except InputError as error:
        say({"error": str(error)})


def make_trainer(config: Any) -> tuple[Any, Callable[[], None]]:
    """The trainer of a run, which counts its agent steps as `step`, and what takes one such step with its updates."""
    if not BEFORE_RENAMES:
        from playvirtual.training.trainer import Trainer

        trainer = Trainer(config)
        return trainer, lambda: trainer.train(1)

    from playvirtual.training.loop import Training

    training = Training(config)

    def take_step() -> None:
        training.interact()
        training.learn()

    return training, take_step


def train(row: str, given: dict[str, Any]) -> None:
    """One training with those of the given settings that this version has."""
    own = from_own(flat(configured(row, FIXED)))
    config = configured(row, {name: value for name, value in given.items() if name in own})
    trainer, take_step = make_trainer(config)
    for _ in range(FIXED["learning_starts"] + WARM):
        take_step()
    say({"ignored": sorted(set(given) - set(own)), "unasked": sorted(set(own) - set(given))})
    for line in sys.stdin:
        first, start = trainer.step, time.monotonic()
        while time.monotonic() < start + float(line):
            take_step()
        say((trainer.step - first) / (time.monotonic() - start))


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
