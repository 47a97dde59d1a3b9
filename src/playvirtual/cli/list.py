"""`playvirtual list`: the tasks, methods, experiments and agents that can be named on the command line."""

from __future__ import annotations

import argparse
from typing import Any

from playvirtual.cli.flags import add_import
from playvirtual.config.build import method_names, method_note
from playvirtual.errors import unknown
from playvirtual.messages import show

LISTS = ("tasks", "methods", "experiments", "agents")
EXAMPLES = """\
examples:
  playvirtual list tasks          what `playvirtual train` and `bench` take
  playvirtual list methods        what --method takes, each with one line
  playvirtual list experiments    what `playvirtual sweep` takes: the paper's tables and figures
  playvirtual list agents         trained agents that come with the package: what `evaluate` and pv.load take"""


def add_list(commands: Any) -> None:
    """Adds `playvirtual list`."""
    parser = commands.add_parser(
        "list",
        help="list tasks, methods, experiments or built-in agents",
        description="List the names that other commands take.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("what", metavar="|".join(LISTS))
    add_import(parser)
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    if options.what not in LISTS:
        raise unknown("list", options.what, LISTS)
    show({"tasks": _tasks, "methods": _methods, "experiments": _experiments, "agents": _agents}[options.what]())
    return 0


def _tasks() -> str:
    from playvirtual.envs import task_names

    own = ["gym/<any Gymnasium id with pixel observations>", "gym/<module>:<id>", "env/<module>:<class or function>"]
    return "\n".join([*task_names(), *own])


def _methods() -> str:
    names = method_names()
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {method_note(name)}" for name in names)


def _experiments() -> str:
    from playvirtual.study.sweep.plan import experiments_text

    return experiments_text()


def _agents() -> str:
    from playvirtual.runs.folder import builtin_agents

    return "\n".join(builtin_agents())
