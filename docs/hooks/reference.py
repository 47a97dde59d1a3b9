"""Pages that are written anew at every build from what the package has: tasks, methods, options, commands, names."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import playvirtual as pv
from playvirtual.cli.flags import NAMED_ELSEWHERE
from playvirtual.cli.main import _commands, _parser, main
from playvirtual.config import registry
from playvirtual.config.build import assemble
from playvirtual.config.schema import PRESETS
from playvirtual.envs.registry import FAMILIES, task_names
from playvirtual.options import _interval
from playvirtual.study.sweep.experiments import EXPERIMENTS, SUITE_NAMES, suite

# Tasks whose defaults stand in the tables, and the head of their column.
SHOWN = {
    "atari/pong": "Atari",
    "dmc/cartpole-swingup": "DMControl",
    "minatar/breakout": "MinAtar",
}
ABOUT = {
    "atari": "Games of the Arcade Learning Environment. The first 26 are those of Atari-100k.",
    "dmc": "DeepMind Control, rendered off screen; `pip install -e '.[dmc]'`. Six of them are the paper's.",
    "minatar": "Five small games on a grid of 10 × 10 cells: minutes on a CPU.",
    "toy": "Two toys of this project that are learned in a minute or two on a CPU.",
    "env": "What a class or function of yours makes: `env/module:name` ([Your environment](../your-environment.md)).",
    "gym": "Any environment that is registered with Gymnasium and shows images: `gym/Name-v0`, `gym/module:Name-v0`.",
}
GROUPS = ("environment", "objective", "replay", "evaluation")  # of a configuration, beside the agent's own options
WITH_TASK = ("train", "bench")  # commands whose options depend on the task that they are given


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"tasks": tasks, "methods": methods, "options": options, "experiments": experiments, "commands": commands}
    for name, page in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The Python reference ends with the public names that its page does not have a place for."""
    if page.file.src_uri != "api.md":
        return markdown
    placed = {line.rpartition(".")[2] for line in markdown.splitlines() if line.startswith("::: ")}
    rest = [f"::: {pv._MODULES[name]}.{name}" for name in pv.__all__ if name not in placed]
    return "\n".join([markdown, "## More", "", *rest]) if rest else markdown


def tasks() -> str:
    lines = [
        "# Every task",
        "",
        "`playvirtual list tasks` prints the same names; `playvirtual train TASK` trains on one.",
        "",
    ]
    names = task_names()
    for family in FAMILIES:
        own = [name for name in names if name.startswith(f"{family}/")]
        lines += [f"## {family}/", "", ABOUT.get(family, ""), ""]
        kinds = sorted({kind for name in own for kind in kinds_of_actions(name)})
        if own:
            listed = ", ".join(f"`{name}`" for name in own)
            lines += [f"{len(own)} tasks, {' and '.join(kinds)} actions.", "", listed, ""]
    lines += ["Environments of your own become tasks by one call: [Extending](../extending.md#an-environment-family)."]
    return "\n".join(lines)


def kinds_of_actions(task: str) -> frozenset[str]:
    """The kind of actions of a task, by the agent that it gets."""
    return registry.agent_of(assemble(task, "playvirtual", "paper", {}).agent).actions


def methods() -> str:
    rows = []
    for spec in registry.methods():
        changed = ", ".join(f"`{name}` = {as_text(value)}" for name, value in spec.changes.items()) or "nothing"
        agents = ", ".join(f"{kind}: `{name}`" for kind, name in spec.agents.items())
        rows.append((f"`{spec.name}`", spec.note, agents, changed))
    return "\n".join(
        [
            "# Every method",
            "",
            "A method is a name for an agent per kind of action space with some options changed: "
            "`playvirtual train TASK --method NAME`. [Baselines](../baselines.md) says where those of the tables come "
            "from, [Later methods](../modern.md) what came after them, and [Extending](../extending.md#a-method) how "
            "to add one.",
            "",
            *table(("method", "what it is", "agents", "changes in the task's options"), rows),
            "",
            f"Presets: {', '.join(f'`{name}`' for name in PRESETS)}. They differ where the paper's text and the "
            "released code do ([the list](../deviations.md#where-text-and-released-code-disagree)).",
        ]
    )


def options() -> str:
    shown = {task: assemble(task, "playvirtual", "paper", {}) for task in SHOWN}
    lines = [
        "# Every option",
        "",
        "An option is a field of a run's configuration, a flag of `playvirtual train` and a keyword of `pv.train`: "
        "`learning_starts` is `--learning-starts` on the command line. `playvirtual train TASK --help` shows those of "
        "a task with its own defaults. The columns at the right are the defaults of method `playvirtual`, preset "
        "`paper`.",
        "",
    ]
    for name in ("run", *GROUPS):
        parts = {task: c if name == "run" else getattr(c, name) for task, c in shown.items()}
        first = next(iter(parts.values()))
        lines += [f"## {name.capitalize()}", "", (type(first).__doc__ or "").partition("\n")[0], ""]
        own = [f for f in fields(first) if f.name not in (*GROUPS, "agent", *NAMED_ELSEWHERE)]
        rows = [(*described(type(first), f), *(as_text(getattr(p, f.name)) for p in parts.values())) for f in own]
        lines += [*table(("option", "meaning", *SHOWN.values()), rows), ""]
    for kind, task in (("discrete", "atari/pong"), ("continuous", "dmc/cartpole-swingup")):
        specs = [spec for spec in registry.agents() if kind in spec.actions]
        own_options = {spec.name: spec.options_for(task) for spec in specs}
        lines += [f"## Agents for {kind} actions", "", f"Defaults on `{task}`.", ""]
        names: dict[str, Any] = {}
        for given in own_options.values():
            for f in fields(given):
                names.setdefault(f.name, (type(given), f))
        rows = [
            (*described(owner, f), *(as_text(getattr(given, name, None)) for given in own_options.values()))
            for name, (owner, f) in names.items()
        ]
        lines += [*table(("option", "meaning", *(f"`{name}`" for name in own_options)), rows), ""]
    return "\n".join(lines)


def described(owner: type, f: Any) -> tuple[str, str]:
    """An option's name, and its meaning with the values that are allowed."""
    kind = get_type_hints(owner)[f.name]
    low, high = f.metadata.get("low"), f.metadata.get("high")
    if get_origin(kind) is Literal:
        allowed = ", ".join(f"`{value}`" for value in get_args(kind))
    elif kind is bool:
        allowed = "`true`, `false`"
    elif low is not None or high is not None:
        allowed = _interval(low, high)
    else:
        allowed = {int: "a whole number", float: "a number", float | None: "a number, or `none`"}.get(kind, "text")
    return f"`{f.name}`", f"{f.metadata['help']}. *Allowed: {allowed}{', each' * (get_origin(kind) is tuple)}*"


def experiments() -> str:
    rows = []
    for e in EXPERIMENTS.values():
        labels = ", ".join(dict.fromkeys(row.label for row in e.rows))
        rows.append((f"`{e.name}`", f"{e.title} ({e.source})", labels, ", ".join(f"`{name}`" for name in e.suites)))
    suites = []
    for name in SUITE_NAMES:
        suites.append((f"`{name}`", ", ".join(f"`{task.task}`" for task in suite(name))))
    return "\n".join(
        [
            "# Every experiment",
            "",
            "`playvirtual sweep NAME` runs one, on a suite or on tasks of your choice ([Studies](../studies.md)). "
            "[Reproduce the paper](../reproduce.md) sets each beside the paper's table.",
            "",
            *table(("experiment", "what it is", "rows", "made for"), rows),
            "",
            "## Suites",
            "",
            *table(("suite", "tasks"), suites),
        ]
    )


def commands() -> str:
    """What `--help` of every command prints."""
    lines = [
        "# Every command",
        "",
        "What `playvirtual COMMAND --help` prints; `train` and `bench` with the defaults of `toy/catch`.",
        "",
    ]
    for command in _commands(_parser([])):
        words = [command, "toy/catch", "--help"] if command in WITH_TASK else [command, "--help"]
        printed = io.StringIO()
        with patch.dict(os.environ, COLUMNS="96"), redirect_stdout(printed), suppress(SystemExit):
            main(words)
        lines += [f"## playvirtual {command}", "", "```text", printed.getvalue().rstrip(), "```", ""]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, whose second column has the most text."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return ['<div class="reference" markdown>', "", lines[0], f"|{' --- |' * len(head)}", *lines[1:], "", "</div>"]


def as_text(value: Any) -> str:
    """A value as the command line takes it; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value) or "none"
