"""Every option of a configuration as a command-line flag, and command lines read with errors of one line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from playvirtual.config.build import every_option
from playvirtual.config.schema import SIZES, Config
from playvirtual.config.sources import GROUPS, NAMES
from playvirtual.envs import import_modules
from playvirtual.errors import InputError, RunError, closest, unknown
from playvirtual.options import ELSEWHERE, as_text, coerce, leaves

DEFAULT_TASK = "atari/pong"  # whose options and defaults help shows when no task is given
# Options that are arguments of the commands themselves, or that follow from others.
NAMED_ELSEWHERE = (*NAMES, "imports", "env_args", "size", "fitted_to")


def add_fields(
    parser: argparse.ArgumentParser,
    config: Config,
    without: Collection[str] = NAMED_ELSEWHERE,
    *,
    whole_help: bool = True,
) -> None:
    """Adds a flag for each option of `config` but those in `without`; the defaults shown are its values.

    Without `whole_help` the help leaves out the options that depend on the task: those of environment, agent and so on.
    """
    groups = {"": parser.add_argument_group("the run")}
    for group in GROUPS:
        groups[group] = parser.add_argument_group(f"{group}: {_title(type(getattr(config, group)).__doc__ or group)}")
    for f, kind, value in leaves(config):
        if f.name not in without:
            owner = next((g for g in groups if g and hasattr(getattr(config, g), f.name)), "")
            action = _add_flag(groups[owner], f, kind, f" (default: {as_text(value) or 'none'})")
            if owner and not whole_help:
                action.help = argparse.SUPPRESS


def _title(docstring: str) -> str:
    """What stands before a docstring's colon or its full stop, as part of a sentence: names such as MinAtar stay."""
    title = docstring.partition("\n")[0].partition(":")[0].rstrip(".")
    first = title.partition(" ")[0]
    return title if any(letter.isupper() for letter in first[1:]) else title[0].lower() + title[1:]


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Option → text of the flags that were given."""
    return {
        name.removeprefix("field_"): value
        for name, value in vars(options).items()
        if name.startswith("field_") and value is not None
    }


def _add_flag(parser: Any, f: Field[Any], kind: Any, default: str = "") -> argparse.Action:
    action: argparse.Action = parser.add_argument(
        "--" + f.name.replace("_", "-"),
        dest=f"field_{f.name}",
        metavar=_placeholder(kind),
        help=f"{f.metadata['help']}{default}".replace("%", "%%"),
    )
    return action


def _placeholder(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return "N,N,…"
    return {int: "N", float: "X", float | None: "X", bool: "true|false"}.get(kind, "TEXT")


class Parser(argparse.ArgumentParser):
    """A parser that raises an `InputError` of one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        if flag := re.fullmatch(r"argument (\S+): expected one argument", message):
            message = self._missing_value(flag[1])
        elif missing := re.fullmatch(r"the following arguments are required: ([^,]+)(, .*)?", message):
            message = self._missing_argument(missing[1])
        raise InputError(message)

    def _missing_argument(self, name: str) -> str:
        """The error for an argument or a flag that the command cannot do without."""
        action = next(a for a in self._actions if name in (*a.option_strings, a.metavar, a.dest))
        # The names that errors about wrong values give.
        field = {"path": "run", "what": self.prog.rpartition(" ")[2]}.get(action.dest, action.dest)
        words = f"{name} {action.metavar}" if name.startswith("-") else name.replace("|", ", ")
        return f"{field}: none is given; allowed: {words}" + (f", {action.help}" if action.help else "")

    def _missing_value(self, flag: str) -> str:
        """The error for a flag that stands at the end or before another one, where its value should be."""
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
    """Reads a command's own arguments beside the flags of every agent, before its task is known.

    Which flags a command has depends on its task, and which word is the task depends on which words are values of
    flags. The error is that of a flag that no agent has: the word after it may have been read as the task.
    """
    parser = Parser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for f, kind in every_option():
        if f.name not in NAMED_ELSEWHERE:
            _add_flag(parser, f, kind)
    add_arguments(parser)
    for action in parser._actions:  # missing arguments are reported by the command itself, or explained in its help
        action.required = False
    parser.add_argument("-h", "--help", action="store_true")
    options, rest = parser.parse_known_args(words)
    stray = next((word for word in rest if word.startswith("-")), None)
    return options, unknown_flag(parser, stray) if stray else None


class UnknownFlag(InputError):
    """A flag that a command does not have; `meant` is one of its own by another name, or one much like it."""

    def __init__(self, flag: str, known: Collection[str]) -> None:
        self.flag, name = flag, flag.removeprefix("--")
        by_name = {own.removeprefix("--"): own for own in sorted(known)}
        same = ELSEWHERE.get(name.replace("-", "_"), "").replace("_", "-")
        self.meant = by_name.get(same) or by_name.get(closest(name, list(by_name), cutoff=0.75) or "")
        super().__init__(str(unknown("option", flag, known, self.meant)))


def unknown_flag(parser: argparse.ArgumentParser, word: str) -> UnknownFlag:
    """The error for a flag that `parser` does not have."""
    return UnknownFlag(word.partition("=")[0], parser._option_string_actions)


def flag_of_other_command(error: UnknownFlag, command: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The error's line; for a flag that only other commands have it names these, in place of a flag unlike it."""
    owners = [name for name, parser in commands.items() if error.flag in parser._option_string_actions]
    if error.meant or not owners:
        return str(error)
    if command not in commands:
        return (
            f"option: {error.flag!r} stands before a command; allowed: after it, as in "
            f"`playvirtual {owners[0]} … {error.flag}`"
        )
    return (
        f"option: {error.flag!r} is one of `playvirtual {', '.join(owners)}` and not of `playvirtual {command}`; "
        f"allowed: what `playvirtual {command} --help` shows"
    )


def add_trust_env(parser: argparse.ArgumentParser) -> None:
    """Adds the flag by which a user allows the code that a file names, and not the command line."""
    parser.add_argument(
        "--trust-env",
        action="store_true",
        help="import the module of an environment that only a file names, as in gym/module:Name-v0: this executes the "
        "module, so use it for run folders and grids that you trust",
    )


def add_import(parser: argparse.ArgumentParser) -> None:
    """Adds the flag by which a user names modules, which `import_named` has imported by then."""
    parser.add_argument(
        "--import",
        action="append",
        dest="imports",
        metavar="MODULE",
        help="import a module first, installed or of the current folder, which registers environments, agents or "
        "methods; may be given more than once; training records it",
    )


def add_size(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for the size of networks and images."""
    parser.add_argument(
        "--size",
        metavar="{" + ",".join(SIZES) + "}",
        help="networks, images, K, M and paces: the paper's, or smaller ones for a CPU (default: the paper's for its "
        "benchmarks; for environments of your own what fits their images and the device)",
    )


def add_env_arg(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for arguments of an environment."""
    parser.add_argument(
        "--env-arg",
        action="append",
        dest="env_args",
        metavar="NAME=VALUE",
        help="an argument that gym/…, env/… or minatar/… is made with, such as size=12; may be given more than once",
    )


def import_named(words: Sequence[str]) -> None:
    """Imports the modules that a command line names, before its task, method and flags are looked up."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_import(parser)
    import_modules(parser.parse_known_args(words)[0].imports or ())


def given_own_env(options: argparse.Namespace) -> dict[str, Any]:
    """The options `imports`, `env_args` and `size`, if their flags were given."""
    given = {name: getattr(options, name) for name in ("imports", "env_args", "size")}
    return {name: values for name, values in given.items() if values}


def given_for_fit(options: argparse.Namespace) -> dict[str, Any]:
    """The options that settings are fitted to, as far as their flags were given, not checked yet."""
    given = given_fields(options)
    return {**given_own_env(options), **{name: given[name] for name in ("steps", "device") if name in given}}


def no_task(command: str) -> InputError:
    """The error for a command that is given no task."""
    return InputError(
        f"task: none is given; allowed: what `playvirtual list tasks` shows, as in `playvirtual {command} toy/catch`"
    )


def optional_int(name: str, text: str | None) -> int | None:
    """The whole number that a flag was given; None if the flag was not."""
    return None if text is None else int(coerce(name, int, text))


def json_file(path: str | None, indent: int | None = 1) -> Callable[[Mapping[str, Any]], None]:
    """A function that writes a record to `path`, if there is one, in one line if `indent` is None.

    A path that cannot be written is refused now.
    """
    if path is None:
        return lambda record: None
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"json: {path!r} cannot be written; allowed: a file in a folder that exists")

    def write(record: Mapping[str, Any]) -> None:
        try:
            file.write_text(json.dumps(record, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {path!r}: {error.strerror}") from error

    return write
