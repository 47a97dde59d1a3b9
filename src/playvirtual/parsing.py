"""Reading command lines: errors of one line, and a first look for what decides which flags there are."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

from playvirtual.errors import InputError, unknown
from playvirtual.flags import add_fields


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        flag = re.fullmatch(r"argument (\S+): expected one argument", message)
        raise InputError(self._without_value(flag[1]) if flag else message)

    def _without_value(self, flag: str) -> str:
        """What a flag is told that stands at the end or before another one."""
        action = self._option_string_actions[flag]
        shown, (about, *_) = str(action.metavar or ""), (action.help or "").split(" (default")
        if "," in shown.strip("{}") or "|" in shown:
            allowed = ", ".join(re.split(r"[,|]", shown.strip("{}")))
        else:
            allowed = {"N": "a whole number", "X": "a number"}.get(shown, about.replace("%%", "%"))
        return f"{flag.lstrip('-').replace('-', '_')}: no value is given; allowed: {allowed}"


def first_look(
    words: Sequence[str], add_arguments: Callable[[argparse.ArgumentParser], None]
) -> tuple[argparse.Namespace, InputError | None]:
    """What a command's own arguments are, read beside the flags of both agents' fields.

    Which of those flags a command has depends on its task, and where its task stands on which words are values of
    flags. The error is that of a flag that neither agent has: the word after it may have been taken for the task.
    """
    from playvirtual.hyperparameters import ATARI, DMC

    parser = Parser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for config in (ATARI, DMC):
        add_fields(parser, config, without=("task", "method", "preset"))
    add_arguments(parser)
    for action in parser._actions:  # what is missing is for the command itself to say, or to explain in its help
        action.required = False
    parser.add_argument("-h", "--help", action="store_true")
    options, rest = parser.parse_known_args(words)
    stray = next((word for word in rest if word.startswith("-")), None)
    return options, unknown_flag(parser, stray) if stray else None


def unknown_flag(parser: argparse.ArgumentParser, word: str) -> InputError:
    """The error for a flag that `parser` does not have."""
    return unknown("option", word.partition("=")[0], parser._option_string_actions)
