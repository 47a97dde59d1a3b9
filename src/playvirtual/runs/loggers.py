"""Loggers: TensorBoard and Weights & Biases show what a run folder has; a run never depends on them."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from playvirtual.config.record import to_dict
from playvirtual.config.schema import Config
from playvirtual.config.sources import to_toml
from playvirtual.errors import InputError, install_hint, shown, unknown
from playvirtual.messages import logger as messages
from playvirtual.options import leaves

KINDS = ("tensorboard", "wandb")
PROJECT = "playvirtual"
MOST_FRAMES = 300  # of a video in TensorBoard's event files


class Logger(Protocol):
    """Shows scalars by name."""

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def write_video(self, name: str, file: Path, gif: Callable[..., bytes], step: int) -> None:
        """Shows a video that is in a file, or that `gif(most=frames)` gives as a GIF."""
        ...

    def close(self) -> None: ...


def parse(text: str) -> tuple[str, ...]:
    """ "none", or names separated by commas; a logger whose package is not installed is refused."""
    if not isinstance(text, str):
        raise InputError(f"log: {shown(text)} is not allowed; allowed: none, {', '.join(KINDS)}")
    names = tuple(name for name in text.split(",") if name not in ("", "none"))
    for name in names:
        if name not in KINDS:
            raise unknown("log", name, ("none", *KINDS))
        if find_spec(name) is None:
            raise InputError(f"log: {name!r} is not installed; {install_hint(name)}")
    return names


class Loggers:
    """All loggers of a run; none by default. One that fails, in whatever way, is named in a message and dropped."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = parse(",".join(names))
        self._loggers: dict[str, Logger] = {}

    def open(self, run: Path, config: Config, step: int) -> None:
        """Starts them for a run that has done `step` steps; what they showed of later steps is removed."""
        makers: dict[str, Callable[[Path, Config, int], Logger]]
        makers = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}
        for name in self.names:
            with self._dropping_on_error(name):
                self._loggers[name] = makers[name](run, config, step)

    def write(self, group: str, line: Mapping[str, Any]) -> None:
        """Shows the numbers of one line of a JSONL log, as group/name at the line's step."""
        if self._loggers:
            values = dict(_numbers(group, {k: v for k, v in line.items() if k != "step"}))
            for name, logger in list(self._loggers.items()):
                with self._dropping_on_error(name):
                    logger.write(values, line["step"])

    def write_video(self, name: str, file: Path, gif: Callable[..., bytes], step: int) -> None:
        """Shows a video of the run folder; see `Logger.write_video`."""
        for kind, logger in list(self._loggers.items()):
            with self._dropping_on_error(kind):
                logger.write_video(name, file, gif, step)

    def close(self) -> None:
        for name, logger in list(self._loggers.items()):
            with self._dropping_on_error(name):
                logger.close()

    @contextmanager
    def _dropping_on_error(self, name: str) -> Iterator[None]:
        """Turns any error of a logger, which is another program, into one message; the run continues without it."""
        try:
            yield
        except Exception as error:
            self._loggers.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            messages.warning(f"{name} failed; the run continues without it ({reason})")


class TensorBoardLogger:
    """Event files in tensorboard/ of the run folder."""

    def __init__(self, run: Path, config: Config, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events of later steps, written before the run was killed, are dropped by the reader.
        self._writer: Any = SummaryWriter(run / "tensorboard", purge_step=step + 1)
        if step == 0:
            self._write_hyperparameters(config)

    def _write_hyperparameters(self, config: Config) -> None:
        """The tab HPARAMS compares runs by their options and by these metrics; the tab TEXT has the whole TOML."""
        from torch.utils.tensorboard.summary import hparams

        for summary in hparams(_flat(config), dict.fromkeys(("evaluation/mean", "train/return"), 0.0)):
            self._writer.file_writer.add_summary(summary)
        self._writer.add_text("config", f"```toml\n{to_toml(config)}\n```")

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def write_video(self, name: str, file: Path, gif: Callable[..., bytes], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        data = gif(most=MOST_FRAMES)
        width, height = (int.from_bytes(data[at : at + 2], "little") for at in (6, 8))
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """One W&B run per run folder, online or, with WANDB_MODE=offline, in wandb/ of the run folder.

    It goes to the project "playvirtual", or to the one that WANDB_PROJECT names.

    W&B cannot remove steps, so wandb.json has the last step of each group that was logged: a resumed run repeats
    steps with the same values, which are not logged twice.
    """

    def __init__(self, run: Path, config: Config, step: int) -> None:
        import wandb

        self._record = run / "wandb.json"
        known = json.loads(self._record.read_text()) if self._record.exists() else {}
        self._id, self._logged = known.get("id", secrets.token_hex(4)), known.get("logged", {})
        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=f"{config.task} {config.method} seed {config.seed}",
            group=f"{config.task} {config.method}",
            tags=[PROJECT, config.task, config.method, config.preset],
            id=self._id,
            resume="allow",
            dir=run,
            config=to_dict(config),
        )
        for group in ("train", "time", "evaluation"):
            self._run.define_metric(f"{group}/*", step_metric="step")

    def write(self, values: Mapping[str, float], step: int) -> None:
        group = next(iter(values)).partition("/")[0] if values else ""
        if not values or step <= self._logged.get(group, -1):
            return
        self._run.log({"step": step, **values})
        self._note(group, step)

    def write_video(self, name: str, file: Path, gif: Callable[..., bytes], step: int) -> None:
        if step > self._logged.get(name, -1):
            self._run.log({"step": step, name: self._wandb.Video(str(file), format=file.suffix[1:])})
            self._note(name, step)

    def _note(self, group: str, step: int) -> None:
        self._logged[group] = step
        self._record.write_text(json.dumps({"id": self._id, "logged": self._logged}) + "\n")

    def close(self) -> None:
        self._run.finish()


def _flat(config: Config) -> dict[str, bool | float | str]:
    """Option → value without groups and without what is None; lists as text."""
    values = {f.name: value for f, _, value in leaves(config) if value is not None}
    return {name: ",".join(map(str, v)) if isinstance(v, tuple) else v for name, v in values.items()}


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """(name, number) of every number, with nested groups as paths; lists and None are left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{prefix}/{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
