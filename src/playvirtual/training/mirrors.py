"""TensorBoard and Weights & Biases as mirrors of a run folder: they show it, they never decide anything."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from playvirtual.config import Config, to_dict
from playvirtual.errors import InputError, unknown
from playvirtual.training.notice import say

KINDS = ("tensorboard", "wandb")


class Mirror(Protocol):
    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def parse(text: str) -> tuple[str, ...]:
    """ "none", or names separated by commas; a name whose package is not there is refused."""
    names = tuple(name for name in text.split(",") if name not in ("", "none"))
    for name in names:
        if name not in KINDS:
            raise unknown("log", name, ("none", *KINDS))
        if find_spec(name) is None:
            raise InputError(f"log: {name!r} is not installed; in a clone: pip install -e '.[{name}]'")
    return names


class Mirrors:
    """All mirrors of a run; none by default. One that fails, in whatever way, is named and given up."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = parse(",".join(names))
        self._mirrors: dict[str, Mirror] = {}

    def open(self, run: Path, config: Config, step: int) -> None:
        """Starts them for a run that has done `step` steps; what they showed beyond that is taken back."""
        makers: dict[str, Callable[[Path, Config, int], Mirror]]
        makers = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
        for name in self.names:
            with self._giving_up(name):
                self._mirrors[name] = makers[name](run, config, step)

    def write(self, group: str, line: Mapping[str, Any]) -> None:
        """Shows the numbers of one line of a journal, as group/name at the line's step."""
        if self._mirrors:
            values = dict(_numbers(group, {k: v for k, v in line.items() if k != "step"}))
            for name, mirror in list(self._mirrors.items()):
                with self._giving_up(name):
                    mirror.write(values, line["step"])

    def close(self) -> None:
        for name, mirror in list(self._mirrors.items()):
            with self._giving_up(name):
                mirror.close()

    @contextmanager
    def _giving_up(self, name: str) -> Iterator[None]:
        """Turns any failure of a mirror, which is someone else's program, into one line, and goes on without it."""
        try:
            yield
        except Exception as error:
            self._mirrors.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            say(f"{name} failed and shows no more of this run, which does without it ({reason})")


class TensorBoard:
    """Event files in tensorboard/ of the run folder."""

    def __init__(self, run: Path, config: Config, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events of later steps, written before the run was killed, are dropped by the reader.
        self._writer = SummaryWriter(run / "tensorboard", purge_step=step + 1)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run per run folder, online or, with WANDB_MODE=offline, in wandb/ of the run folder.

    W&B takes nothing back, so wandb.json remembers how far it has been told: the same steps of a resumed run
    have the same values and are not told twice.
    """

    def __init__(self, run: Path, config: Config, step: int) -> None:
        import wandb

        self._record = run / "wandb.json"
        known = json.loads(self._record.read_text()) if self._record.exists() else {}
        self._id, self._told = known.get("id", secrets.token_hex(4)), known.get("told", {})
        self._run = wandb.init(
            project="playvirtual",
            name=f"{config.task} {config.method} seed {config.seed}",
            id=self._id,
            resume="allow",
            dir=run,
            config=to_dict(config),
        )
        for group in ("train", "time", "evaluation"):
            self._run.define_metric(f"{group}/*", step_metric="step")

    def write(self, values: Mapping[str, float], step: int) -> None:
        group = next(iter(values)).partition("/")[0] if values else ""
        if not values or step <= self._told.get(group, -1):
            return
        self._run.log({"step": step, **values})
        self._told[group] = step
        self._record.write_text(json.dumps({"id": self._id, "told": self._told}) + "\n")

    def close(self) -> None:
        self._run.finish()


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """(name, number) of everything that is a number, groups opened, lists and blanks left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{prefix}/{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
