"""The command line: subcommands and their flags, no logic."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playvirtual import __version__
from playvirtual.cli_study import add_probe, add_report, add_sweep, experiments_text
from playvirtual.config import METHODS, PRESETS, Config, other_agents_option
from playvirtual.errors import Crash, InputError, Interrupted, RunError, out_of_memory, unknown, writing
from playvirtual.flags import add_fields, given_fields
from playvirtual.parsing import Parser, first_look, unknown_flag
from playvirtual.streams import replace_what_cannot_be_encoded

DEFAULT_TASK = "atari/pong"  # whose defaults `train --help` shows when no task is given


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 1 for a failed run, 2 for bad input, 128 + N for signal N."""
    replace_what_cannot_be_encoded()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _parser(words)
        if not words:
            parser.print_help(sys.stderr)
            return 2
        _check_command(parser, words[0])
        options, rest = parser.parse_known_args(words)
        if rest:
            raise _unread(parser, options, rest[0])
        return int(options.run(options))
    except InputError as error:
        print(f"playvirtual: error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        if isinstance(error, Crash):
            traceback.print_exception(error.__cause__)
        print(f"playvirtual: error: {error}", file=sys.stderr)
        return 1
    except Interrupted as error:
        print(f"playvirtual: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("playvirtual: interrupted", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if (line := out_of_memory(error)) is None:
            raise
        print(f"playvirtual: error: {line}", file=sys.stderr)
        return 1


def _show(text: str) -> None:
    """Prints what a command has found; a RunError if it cannot be written."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left over would be tried again, and fail again, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RunError(f"stdout: cannot be written: {error.strerror}") from error


def _parser(words: Sequence[str]) -> Parser:
    parser = Parser(
        prog="playvirtual",
        description="Data-efficient reinforcement learning from pixels with PlayVirtual.",
        epilog="playvirtual COMMAND --help explains a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"playvirtual {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    _add_train(commands, words)
    _add_evaluate(commands)
    _add_export(commands)
    _add_bench(commands, words)
    _add_list(commands)
    add_sweep(commands, words)
    add_probe(commands)
    add_report(commands)
    return parser


def _task_shown(command: str, words: Sequence[str], add_arguments: Callable[[Any], None]) -> tuple[bool, Config]:
    """Whether `command` is given a task, and the configuration whose defaults its help shows."""
    from playvirtual.presets import base

    if not words or words[0] != command:
        return False, base(DEFAULT_TASK)
    options, stray = first_look(words[1:], add_arguments)
    try:
        given = options.task or _task_of(getattr(options, "resume", None))
        return given is not None, base(given or DEFAULT_TASK)
    except InputError as error:
        raise stray or error from None


def _task_of(resumed: str | bool | None) -> str | None:
    """That of the run to go on with, if one is named."""
    if not isinstance(resumed, str):
        return None
    from playvirtual.envs import task_names
    from playvirtual.training.run_folder import RunFolder

    try:
        return RunFolder.open(resumed).config().task
    except InputError as error:
        if Path(resumed).exists() or not (resumed.startswith("gym/") or resumed in task_names()):
            raise
        raise InputError(
            f"resume: {resumed!r} is a task and not a run folder; allowed: `playvirtual train {resumed} --resume`, or "
            "`playvirtual train --resume RUN`"
        ) from error


def _add_train(commands: Any, words: Sequence[str]) -> None:
    named, config = _task_shown("train", words, _train_arguments)
    parser = commands.add_parser(
        "train",
        help="train an agent and score it",
        description=f"Train an agent and score it. Defaults shown are those of {config.task}; other tasks have others.",
        epilog="examples: playvirtual train atari/pong --method spr --seed 3; "
        "the same with --resume goes on after a stop, as does playvirtual train --resume RUN",
        allow_abbrev=False,
    )
    _train_arguments(parser)
    add_fields(parser, config, without=("task", "method", "preset"))
    parser.set_defaults(run=_train, shown=config, named=named)


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", nargs="?", help="e.g. atari/pong, minatar/breakout, toy/catch; see `playvirtual list tasks`"
    )
    parser.add_argument("--method", metavar="NAME", help=f"one of {', '.join(METHODS)} (default: playvirtual)")
    parser.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)} (default: paper)")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="a new or an empty folder for the run (default: runs/TASK/METHOD/seed-N)"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="RUN",
        help="go on where the run stopped, to the bit on the CPU: add it to the command that began the run (a run "
        "that never began begins), or give the run folder instead of a task; changed settings are refused",
    )
    parser.add_argument(
        "--log",
        default="none",
        metavar="NAMES",
        help="none, tensorboard, wandb, or both with a comma: mirrors of the run folder, which is always written",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score a trained agent again",
        description="Play whole episodes with a run's newest checkpoint under its evaluation protocol.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder or an export")
    parser.add_argument("--episodes", metavar="N", help="default: as many as the run's own evaluation")
    parser.add_argument("--seed", metavar="N", help="seed of the episodes (default: the run's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--video",
        action="store_true",
        help="film the first lane into RUN/videos/ with reward, return, and Q values or action: "
        "MP4 with the extra video installed, else GIF",
    )
    parser.set_defaults(run=_evaluate)


def _add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="write a trained agent as a small folder",
        description="Write weights and configuration alone, without replay and optimisers; `playvirtual evaluate` "
        "and pv.load take the folder like a run.",
        epilog="example: playvirtual export runs/atari-pong/playvirtual/seed-1 --out pong-agent",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder")
    parser.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.set_defaults(run=_export)


def _add_bench(commands: Any, words: Sequence[str]) -> None:
    named, config = _task_shown("bench", words, _bench_arguments)
    parser = commands.add_parser(
        "bench",
        help="time a run's updates and steps on this machine, and show where the time goes",
        description="Time what `playvirtual train` with the same flags would do: build its parts, play 300 random "
        "steps, compile and capture, then measure updates, whole steps, memory and kernels. No run folder is "
        f"written. Defaults shown are those of {config.task}.",
        epilog="example: playvirtual bench atari/pong --precision bf16 --json pong.json; the update's median is the "
        "number to compare, quartiles far from it mean that the machine was not idle",
        allow_abbrev=False,
    )
    _bench_arguments(parser)
    add_fields(parser, config, without=("task", "method", "preset"))
    parser.set_defaults(run=_bench, shown=config, named=named)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="?", help="e.g. atari/pong, toy/catch; see `playvirtual list tasks`")
    parser.add_argument("--method", default="playvirtual", metavar="NAME", help=f"one of {', '.join(METHODS)}")
    parser.add_argument("--preset", default="paper", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--repeats", default="15", metavar="N", help="timed blocks of updates (default: 15)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")


def _add_list(commands: Any) -> None:
    parser = commands.add_parser("list", help="what there is to name on the command line", allow_abbrev=False)
    parser.add_argument("what", metavar="tasks|methods|experiments")
    parser.set_defaults(run=_list)


def _check_command(parser: Parser, word: str) -> None:
    """Raises unless a command, or a flag that stands alone, comes first."""
    if word.startswith("-") and word not in parser._option_string_actions:
        raise unknown_flag(parser, word)
    if not word.startswith("-") and word not in _commands(parser):
        raise unknown("command", word, _commands(parser))


def _commands(parser: Parser) -> dict[str, Parser]:
    return next(dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _no_task(command: str) -> InputError:
    return InputError(
        f"task: none is given; allowed: what `playvirtual list tasks` shows, as in `playvirtual {command} toy/catch`"
    )


def _unread(parser: Parser, options: argparse.Namespace, word: str) -> InputError:
    command = options.command
    if not word.startswith("-"):
        return InputError(f"argument: {word!r} is one too many; see `playvirtual {command} --help`")
    flag = word.partition("=")[0]
    if (command, flag) == ("sweep", "--method"):
        return InputError(f"option: {flag!r} is not one of a sweep, whose rows have methods; allowed: --rows NAMES")
    field = flag.removeprefix("--").replace("-", "_")
    refused = other_agents_option(field, options.shown, flag) if hasattr(options, "shown") else None
    if refused and not options.named:
        return _no_task(command)
    return refused or unknown_flag(_commands(parser)[command], word)


def _train(options: argparse.Namespace) -> int:
    from playvirtual.api import resume, train
    from playvirtual.study.summary import run_summary

    choices = {name: getattr(options, name) for name in ("method", "preset") if getattr(options, name) is not None}
    common = {"log": options.log, "quiet": options.quiet, **choices, **given_fields(options)}
    if isinstance(options.resume, str):
        if options.task is not None or options.run_dir is not None:
            raise InputError(f"resume: {options.resume!r} is given beside a task or --run-dir; allowed: one of the two")
        run = resume(options.resume, **common)
    elif options.task is None and options.resume:
        raise InputError(
            "resume: neither a task nor a run folder is given; allowed: `playvirtual train TASK --resume` with the "
            "flags that began the run, or `playvirtual train --resume RUN`"
        )
    elif options.task is None:
        raise _no_task("train")
    else:
        run = train(options.task, run_dir=options.run_dir, resume=bool(options.resume), **common)
    _show(f"{run_summary(run.config, run.returns)}\nrun folder: {run.path}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from playvirtual.api import evaluate, load
    from playvirtual.config import coerce
    from playvirtual.study.summary import run_summary
    from playvirtual.training.run_folder import RunFolder
    from playvirtual.training.video import Recorder

    config = RunFolder.open(options.path).config()
    episodes = None if options.episodes is None else coerce("episodes", int, options.episodes)
    seed = None if options.seed is None else coerce("seed", int, options.seed)
    recorder = Recorder(load(options.path, options.device)) if options.video else None
    returns = evaluate(options.path, episodes=episodes, seed=seed, device=options.device, watcher=recorder)
    _show(run_summary(config, returns))
    if recorder is not None:
        film = Path(options.path) / "videos" / f"evaluation-seed-{config.seed if seed is None else seed}"
        with writing("video", film):
            _show(f"video: {recorder.save(film)}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from playvirtual.api import export

    _show(f"export: {export(options.path, options.out)}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from playvirtual.api import bench
    from playvirtual.config import coerce
    from playvirtual.training.bench_table import json_file, table
    from playvirtual.training.notice import say

    if options.task is None:
        raise _no_task("bench")
    repeats, write = coerce("repeats", int, options.repeats), json_file(options.json)
    given = {"method": options.method, "preset": options.preset, **given_fields(options)}
    measurement = bench(options.task, repeats=repeats, say=say, **given)
    _show(table(measurement))
    write(measurement)
    return 0


def _list(options: argparse.Namespace) -> int:
    from playvirtual.envs import task_names
    from playvirtual.hyperparameters import METHOD_NOTES

    if options.what == "tasks":
        _show("\n".join([*task_names(), "gym/<any Gymnasium id with pixel observations>"]))
    elif options.what == "methods":
        width = max(map(len, METHOD_NOTES))
        _show("\n".join(f"{name:<{width}}  {note}" for name, note in METHOD_NOTES.items()))
    elif options.what == "experiments":
        _show(experiments_text())
    else:
        raise unknown("list", options.what, ("tasks", "methods", "experiments"))
    return 0
