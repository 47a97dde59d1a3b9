"""The command line: subcommands and their flags, no logic."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from playvirtual.config import METHODS, PRESETS, Config, leaves
from playvirtual.errors import InputError, unknown

DEFAULT_TASK = "atari/pong"  # whose defaults `train --help` shows when no task is given


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 2 for bad input, 130 when interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _parser(words)
        options, rest = parser.parse_known_args(words)
        if rest:
            raise _unknown_flag(parser, options.command, rest[0])
        return int(options.run(options))
    except InputError as error:
        print(f"playvirtual: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("playvirtual: interrupted", file=sys.stderr)
        return 130


def _parser(words: Sequence[str]) -> Parser:
    parser = Parser(
        prog="playvirtual",
        description="Data-efficient reinforcement learning from pixels with PlayVirtual.",
        epilog="playvirtual COMMAND --help explains a command.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    _add_train(commands, words)
    _add_evaluate(commands)
    _add_list(commands)
    return parser


def _add_train(commands: Any, words: Sequence[str]) -> None:
    from playvirtual.presets import base

    given = words[1] if len(words) > 1 and words[0] == "train" and not words[1].startswith("-") else DEFAULT_TASK
    config: Config = base(given) if words[:1] == ["train"] else base(DEFAULT_TASK)
    parser = commands.add_parser(
        "train",
        help="train an agent and score it",
        description=f"Train an agent and score it. Defaults shown are those of {given}; other tasks have others.",
        epilog="example: playvirtual train atari/pong --method spr --seed 3",
        allow_abbrev=False,
    )
    parser.add_argument("task", help="e.g. atari/pong, minatar/breakout, toy/catch; see `playvirtual list tasks`")
    parser.add_argument("--method", default="playvirtual", metavar="NAME", help=f"one of {', '.join(METHODS)}")
    parser.add_argument("--preset", default="paper", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--run-dir", metavar="DIR", help="where the run is written (default: runs/TASK/METHOD/seed-N)")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    groups = {"": parser.add_argument_group("the run")}
    for group in ("environment", "objective", "agent", "replay", "evaluation"):
        title = (type(getattr(config, group)).__doc__ or group).partition(":")[0].rstrip(".").lower()
        groups[group] = parser.add_argument_group(f"{group}: {title}")
    for f, kind, value in leaves(config):
        if f.name in ("task", "method", "preset"):
            continue
        owner = next((g for g in groups if g and hasattr(getattr(config, g), f.name)), "")
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        groups[owner].add_argument(
            _flag(f.name),
            dest=f"field_{f.name}",
            metavar=_placeholder(kind),
            help=f"{f.metadata['help']} (default: {shown})".replace("%", "%%"),
        )
    parser.set_defaults(run=_train)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _placeholder(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return "N,N,…"
    return {int: "N", float: "X", bool: "true|false"}.get(kind, "TEXT")


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score a trained agent again",
        description="Play whole episodes with a run's newest checkpoint under its evaluation protocol.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder")
    parser.add_argument("--episodes", metavar="N", help="default: as many as the run's own evaluation")
    parser.add_argument("--seed", metavar="N", help="seed of the episodes (default: the run's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--gif", metavar="FILE", help="also write the first lane's play as an animation")
    parser.set_defaults(run=_evaluate)


def _add_list(commands: Any) -> None:
    parser = commands.add_parser("list", help="what there is to name on the command line", allow_abbrev=False)
    parser.add_argument("what", metavar="tasks|methods")
    parser.set_defaults(run=_list)


def _unknown_flag(parser: Parser, command: str, word: str) -> InputError:
    if not word.startswith("-"):
        return InputError(f"argument: {word!r} is one too many; see `playvirtual {command} --help`")
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    flags = [flag for a in subparsers.choices[command]._actions for flag in a.option_strings]
    return unknown("option", word.partition("=")[0], flags)


def _train(options: argparse.Namespace) -> int:
    from playvirtual.api import train
    from playvirtual.study.summary import run_summary

    fields = {
        name.removeprefix("field_"): value
        for name, value in vars(options).items()
        if name.startswith("field_") and value is not None
    }
    run = train(
        options.task,
        method=options.method,
        preset=options.preset,
        run_dir=options.run_dir,
        quiet=options.quiet,
        **fields,
    )
    print(run_summary(run.config, run.returns))
    print(f"run folder: {run.path}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from playvirtual.api import evaluate
    from playvirtual.config import coerce
    from playvirtual.study.summary import run_summary
    from playvirtual.study.video import Recorder
    from playvirtual.training.run_folder import RunFolder

    config = RunFolder.open(options.path).config()
    episodes = None if options.episodes is None else coerce("episodes", int, options.episodes)
    if episodes is not None and episodes < 1:
        raise InputError(f"episodes: {episodes} is not allowed; allowed: 1 or more")
    seed = None if options.seed is None else coerce("seed", int, options.seed)
    recorder = Recorder() if options.gif else None
    returns = evaluate(options.path, episodes=episodes, seed=seed, device=options.device, watcher=recorder)
    print(run_summary(config, returns))
    if recorder is not None:
        recorder.save_gif(Path(options.gif))
        print(f"animation: {options.gif}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from playvirtual.envs import task_names
    from playvirtual.presets import METHOD_NOTES

    if options.what == "tasks":
        print("\n".join([*task_names(), "gym/<any Gymnasium id with pixel observations>"]))
    elif options.what == "methods":
        width = max(map(len, METHOD_NOTES))
        print("\n".join(f"{name:<{width}}  {note}" for name, note in METHOD_NOTES.items()))
    else:
        raise unknown("list", options.what, ("tasks", "methods"))
    return 0
