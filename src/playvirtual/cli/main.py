"""The entry point of the command line: its parser, and every error as one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from playvirtual import __version__
from playvirtual.cli.flags import Parser, UnknownFlag, flag_of_other_command, import_named, no_task, unknown_flag
from playvirtual.cli.list import add_list
from playvirtual.cli.share import add_export, add_pull, add_push
from playvirtual.cli.study import add_probe, add_report, add_sweep
from playvirtual.cli.train import add_bench, add_evaluate, add_train
from playvirtual.cli.video import add_video
from playvirtual.config.schema import option_of_other_agent
from playvirtual.errors import Crash, InputError, Interrupted, RunError, out_of_memory, shown, unknown
from playvirtual.messages import log_to_stderr, replace_unencodable, say

GROUPS = {  # of commands, as the help shows them
    "one agent": ("train", "evaluate", "video", "export"),
    "a model hub": ("push", "pull"),
    "studies": ("sweep", "report", "probe"),
    "this machine, and what there is": ("bench", "list"),
}
EXAMPLES = """\
examples:
  playvirtual train toy/catch                             train PlayVirtual on a toy, minutes on a laptop's CPU
  playvirtual train atari/pong --seed 3                   100k steps of Atari, minutes on a GPU
  playvirtual evaluate RUN --video                        score a run's agent again, with a video
  playvirtual video RUN --episodes 4                      film four episodes side by side
  playvirtual evaluate playvirtual/minatar-breakout       an agent that comes with the package
  playvirtual export RUN --card --out pong-agent          its weights with a model card and a film, to give away
  playvirtual sweep minatar --seeds 5 --out runs/minatar  RL, SPR and PlayVirtual on five games
  playvirtual report runs/minatar --out report            tables, statistics and plots on one page
`playvirtual COMMAND --help` explains a command; `playvirtual list tasks` shows what can be played."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 1 for a failed run, 2 for bad input, 128 + N for signal N."""
    replace_unencodable()
    log_to_stderr()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_working_directory()
        import_named(words)
        parser = _parser(words)
        if not words:
            parser.print_help(sys.stderr)
            return 2
        _check_command(parser, words[0])
        options, rest = parser.parse_known_args(words)
        if rest:
            raise _unread_word(parser, options, rest[0])
        return int(options.run(options))
    except UnknownFlag as error:
        say(f"error: {flag_of_other_command(error, words[0], _commands(_parser([])))}")
        return 2
    except InputError as error:
        say(f"error: {error}")
        return 2
    except RunError as error:
        if isinstance(error, Crash):
            traceback.print_exception(error.__cause__)
        say(f"error: {error}")
        return 1
    except Interrupted as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except OSError as error:  # of the system, where nothing else was said about it
        where = f" ({shown(error.filename)})" if error.filename else ""
        say(f"error: {error.strerror or type(error).__name__}{where}")
        return 1
    except (MemoryError, RuntimeError) as error:
        if (line := out_of_memory(error)) is None:
            raise
        say(f"error: {line}")
        return 1


def _parser(words: Sequence[str]) -> Parser:
    """The parser of all commands; some have the flags of the task that `words` name."""
    parser = Parser(
        prog="playvirtual",
        usage="playvirtual COMMAND [options]",
        description="Data-efficient reinforcement learning from pixels with PlayVirtual.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"playvirtual {__version__}")
    commands = parser.add_subparsers(
        prog="playvirtual",  # else that of the usage above, which names no command
        dest="command",
        metavar="COMMAND",
        required=True,
        parser_class=Parser,
        help=argparse.SUPPRESS,
    )
    add_train(commands, words)
    add_evaluate(commands)
    add_video(commands)
    add_export(commands)
    add_push(commands)
    add_pull(commands)
    add_bench(commands, words)
    add_list(commands)
    add_sweep(commands, words)
    add_probe(commands)
    add_report(commands)
    parser.description = f"{parser.description}\n\n{_command_groups(commands)}"
    return parser


def _command_groups(commands: Any) -> str:
    """Every command with its line of help, in the groups of GROUPS."""
    about = {action.dest: action.help for action in commands._choices_actions}
    lines = []
    for title, names in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<10}{about.pop(name)}" for name in names), ""]
    assert not about, f"commands without a group: {sorted(about)}"
    return "\n".join(lines).rstrip()


def _check_working_directory() -> None:
    """Raises unless there is one: without it libraries that PyTorch needs end the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            f"working directory: it is not there any more ({error.strerror}); allowed: a folder that exists"
        ) from None


def _check_command(parser: Parser, word: str) -> None:
    """Raises unless the first word is a command, or a flag that stands alone."""
    if word.startswith("-") and word not in parser._option_string_actions:
        raise unknown_flag(parser, word)
    if not word.startswith("-") and word not in _commands(parser):
        raise unknown("command", word, _commands(parser))


def _commands(parser: Parser) -> dict[str, Parser]:
    return next(dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _unread_word(parser: Parser, options: argparse.Namespace, word: str) -> InputError:
    """The error for a word that the command does not take."""
    command = options.command
    if not word.startswith("-"):
        return InputError(f"argument: {word!r} is one too many; see `playvirtual {command} --help`")
    flag = word.partition("=")[0]
    if (command, flag) == ("sweep", "--method"):
        return InputError(f"option: {flag!r} is not one of a sweep, whose rows have methods; allowed: --rows NAMES")
    if flag == "--task" and hasattr(options, "task"):
        return InputError(
            f"option: '--task' is not known; allowed: the task alone, as in `playvirtual {command} toy/catch`"
        )
    name = flag.removeprefix("--").replace("-", "_")
    refused = option_of_other_agent(name, options.shown) if hasattr(options, "shown") else None
    if refused and not options.named:
        return no_task(command)
    return refused or unknown_flag(_commands(parser)[command], word)
