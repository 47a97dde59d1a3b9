"""The command line of every script in this folder: checked arguments, bad input in one line, exit code 2."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from playvirtual.config.build import build
from playvirtual.config.schema import Config
from playvirtual.device import resolve_device
from playvirtual.errors import InputError, unknown

DEVICES = "auto (the GPU where there is one), cpu, cuda or cuda:N"


class Parser(argparse.ArgumentParser):
    """Shows a script's docstring as its help and raises an `InputError` for bad arguments."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Raises an `InputError` that names the field: `argument --steps: …` becomes `steps: …`."""
        raise InputError(message.removeprefix("argument ").lstrip("-"))


def run(main: Callable[[], int | None]) -> NoReturn:
    """Ends the program with the result of `main`, or with one line on stderr and exit code 2 on bad input."""
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def checked(task: str, **options: Any) -> Config:
    """The configuration, or an `InputError`, also for a device that this machine does not have."""
    config = build(task, **options)
    resolve_device(config.device)
    return config


def _refused(text: str, allowed: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: {allowed}")


def whole(low: int) -> Callable[[str], int]:
    """For `type=`: whole numbers, `low` or more."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise _refused(text, f"whole numbers, {low} or more")
        return number

    return convert


def seconds(*, zero: bool = False) -> Callable[[str], float]:
    """For `type=`: finite numbers above 0, or 0 too."""

    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
            raise _refused(text, "numbers, 0 or more" if zero else "numbers above 0")
        return number

    return convert


def one_of(*names: str) -> Callable[[str], str]:
    """For `type=`: one of these words."""

    def convert(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(str(unknown("", text, names)).removeprefix(": "))
        return text

    return convert


def new_file(text: str) -> Path:
    """For `type=`: a file that can be written at the end."""
    path = Path(text)
    target = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(target, os.W_OK):
        raise _refused(text, "a file in a folder that exists and can be written")
    return path


def make_folder(field: str, path: Path) -> None:
    """Makes the folder of option `field` if it does not exist; an `InputError` if it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        allowed = "a folder that can be made and written"
        raise InputError(f"{field}: {str(path)!r} is not allowed ({error.strerror}); allowed: {allowed}") from None
