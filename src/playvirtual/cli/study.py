"""`playvirtual sweep`, `probe` and `report`: the commands about many runs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playvirtual.cli.flags import (
    DEFAULT_TASK,
    NAMED_ELSEWHERE,
    add_env_arg,
    add_fields,
    add_import,
    add_size,
    add_trust_env,
    first_look,
    given_fields,
    given_for_fit,
    given_own_env,
    optional_int,
)
from playvirtual.config.build import base
from playvirtual.config.schema import PRESETS, Config
from playvirtual.errors import InputError, shown, writing
from playvirtual.messages import say, show
from playvirtual.options import coerce

SWEEP_HELP = """\
Run every setting of a table of the paper, or of a grid of your own, on a suite of tasks with several seeds.

The same command does the rest of the work each time: finished runs are skipped, interrupted ones resume, failed
ones are tried again. The flags of `playvirtual train` that set up a run hold for every run of the sweep, but where
its row or method sets the same. Defaults shown for them are those of {task}; other tasks have others.
Probes that a table needs are taken of every run once it is trained."""
SWEEP_EXAMPLES = """\
examples:
  playvirtual sweep toy --seeds 2 --out runs/toy                     a first look, minutes on a laptop
  playvirtual sweep minatar --seeds 5 --out runs/minatar             RL, SPR and PlayVirtual on MinAtar
  playvirtual sweep ablation-k --suite atari/pong --seeds 5          one table of the paper, one game
  playvirtual sweep atari100k --seeds 5 --dry-run                    what it would do, and how long
  playvirtual sweep my-grid.toml --suite minatar --seeds 3           rows of your own: [[row]] label, method, options
  playvirtual sweep dmc100k --engine ray --address auto --gpus-per-run 0.25
then: playvirtual report runs/toy --out report"""
PROBE_EXAMPLES = """\
examples:
  playvirtual probe runs/dmc-cheetah-run/spr/seed-1 dynamics
  playvirtual probe runs/atari-pong/playvirtual/seed-1 complexity"""
REPORT_EXAMPLES = """\
examples:
  playvirtual report runs/minatar --out report
  playvirtual report runs/minatar runs/toy --title 'Two suites' --out report"""


def add_sweep(commands: Any, words: Sequence[str]) -> None:
    """Adds `playvirtual sweep`; the flags of its runs are those of the first task that `words` name."""
    config = _first_config(words)
    parser = commands.add_parser(
        "sweep",
        usage="playvirtual sweep EXPERIMENT [--suite NAMES] [--seeds N] [--out DIR] [--dry-run] [options]",
        help="run a table of the paper, or a grid of your own",
        description=SWEEP_HELP.format(task=config.task),
        epilog=SWEEP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _sweep_arguments(parser)
    add_fields(parser, config, without=(*NAMED_ELSEWHERE, "seed"))
    parser.set_defaults(run=lambda options: _sweep(options, words), shown=config, named=True)


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment", metavar="EXPERIMENT", help="see `playvirtual list experiments`; or a .toml or .py"
    )
    suites = "atari100k, dmc100k, dmc500k, minatar, toy, or tasks: a,b,c (default: those of the experiment)"
    parser.add_argument("--suite", metavar="NAMES", help=suites)
    parser.add_argument("--seeds", metavar="N", default="5", help="runs of each setting, seeds 1 to N (default: 5)")
    rows = "only these rows, by label or method: a,b,c, or 'a; b' where a label has a comma"
    parser.add_argument("--rows", metavar="NAMES", help=rows)
    presets = f"one of {', '.join(PRESETS)} (default: the experiment's, which is paper for most)"
    parser.add_argument("--preset", metavar="NAME", help=presets)
    parser.add_argument("--out", default="runs", metavar="DIR", help="where the run folders go (default: runs)")
    parser.add_argument("--retries", default="1", metavar="N", help="further attempts of a failed run (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="print the grid and an estimate of time, run nothing")
    add_import(parser)
    add_env_arg(parser)
    add_size(parser)
    add_trust_env(parser)
    engine = parser.add_argument_group("where the runs go")
    engine.add_argument("--engine", default="local", metavar="local|ray", help="default: local, this machine")
    engine.add_argument("--workers", metavar="N", help="local: runs at a time (default: the cores, or GPUs × per-gpu)")
    sharing = "local: runs that share a GPU (default: under MPS up to 6, as cores and memory allow; else 1)"
    engine.add_argument("--per-gpu", metavar="N", help=sharing)
    mps = "local: NVIDIA's MPS where runs share a GPU; auto (default): if it is installed"
    engine.add_argument("--mps", metavar="auto|on|off", help=mps)
    address = "ray: the cluster (default: RAY_ADDRESS, or this machine's, which is started if there is none)"
    engine.add_argument("--address", metavar="HOST:PORT", help=address)
    engine.add_argument("--cpus-per-run", metavar="X", help="ray: CPUs of a run (default: 1)")
    engine.add_argument("--gpus-per-run", metavar="X", help="ray: share of a GPU (default: 1 where there are any)")


def add_probe(commands: Any) -> None:
    """Adds `playvirtual probe`."""
    parser = commands.add_parser(
        "probe",
        help="measure a trained agent beyond its score",
        description="dynamics: the mean squared one-step error of the dynamics model in the latent space, on fresh "
        "episodes of the trained agent. complexity: trainable parameters and the time of the updates. Prints the "
        "paper's number beside it and writes RUN/probes.json, which the report reads.",
        epilog=PROBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder")
    parser.add_argument("what", metavar="dynamics|complexity")
    parser.add_argument("--transitions", default="1000", metavar="N", help="dynamics: how many (default: 1000)")
    parser.add_argument("--seed", metavar="N", help="dynamics: seed of the episodes (default: the run's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add_import(parser)
    add_trust_env(parser)
    parser.set_defaults(run=_probe)


def add_report(commands: Any) -> None:
    """Adds `playvirtual report`."""
    parser = commands.add_parser(
        "report",
        help="one page with tables beside the paper's, statistics and plots",
        description="Read run folders and write index.html (self-contained), plots as PNG and SVG, and tables as CSV, "
        "Markdown and LaTeX. Unfinished and unreadable runs are named, the rest is reported.",
        epilog=REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--out", default="report", metavar="DIR", help="where the report goes (default: report)")
    title = "the page's title (default: that of the grid of your own that all runs are of, else Study report)"
    parser.add_argument("--title", metavar="TEXT", help=title)
    add_import(parser)
    parser.set_defaults(run=_report)


def _first_config(words: Sequence[str]) -> Config:
    """The configuration whose options and defaults `sweep` shows: that of its first task, as far as words tell.

    Its agent is that of the first of --rows, so that rows of one baseline can be given that baseline's options.
    """
    from playvirtual.study.sweep.experiments import suite
    from playvirtual.study.sweep.grids import check_trusted_suites, load, select

    if words[:1] != ["sweep"]:
        return base(DEFAULT_TASK)
    options, _ = first_look(words[1:], _sweep_arguments)
    try:
        suites: Sequence[str] = [options.suite]
        if not options.suite:
            check_trusted_suites(grid := load(options.experiment or ""), trust_env=options.trust_env)
            suites = grid.suites
        first = suite(suites[0] if suites else DEFAULT_TASK)[0].task
        method = select(load(options.experiment or ""), options.rows).rows[0].method if options.rows else "playvirtual"
        return base(first, method=method, options=given_for_fit(options))
    except InputError:  # reported with more detail when the sweep is planned
        return base(DEFAULT_TASK)


def _sweep(options: argparse.Namespace, words: Sequence[str]) -> int:
    from playvirtual.device import resolve_device
    from playvirtual.runs.atomic_io import make_folder
    from playvirtual.study.engines import engine
    from playvirtual.study.sweep import grids
    from playvirtual.study.sweep.display import display, outcome
    from playvirtual.study.sweep.plan import plan
    from playvirtual.study.sweep.sweep import check_retries, sweep

    fields = {**given_fields(options), **given_own_env(options)}
    if "init_from" in fields:  # a run may be carried out in another working directory
        fields["init_from"] = str(Path(fields["init_from"]).resolve())
    where = (options.engine, vars(options), fields.get("device", "auto"))
    engine.check_options(*where)
    retries = check_retries(coerce("retries", int, options.retries))
    jobs = grids.planned_jobs(
        options.experiment,
        rows=options.rows,
        suite_names=options.suite,
        seeds=coerce("seeds", int, options.seeds),
        out=_folder("out", options.out),
        preset=options.preset,
        options=fields,
        trust_env=options.trust_env,
    )
    if options.dry_run:
        show(plan(jobs, engine.num_workers(*where)))
        return 0
    if options.engine == "local":
        resolve_device(where[2])  # a device that is not there fails here once, and not in every run
    chosen = engine.make_engine(*where)
    with writing("out", Path(options.out)):
        make_folder(Path(options.out))
        grids.record_labels(options.experiment, Path(options.out), jobs)
    result = sweep(jobs, chosen, display(), retries)
    if text := outcome(result, shlex.join(["playvirtual", *words])):
        print(text, file=sys.stderr)
    else:
        imports = [word for name in options.imports or () for word in ("--import", name)]
        show(f"next: {shlex.join(['playvirtual', 'report', options.out, *imports])}")
    return 128 + result.stopped_by if result.stopped_by else int(bool(result.failed))


def _folder(field: str, path: str) -> Path:
    """A folder on the command line; an empty name, as of a shell variable that is not set, is not the present one."""
    if not path:
        raise InputError(f"{field}: '' is not allowed; allowed: the path of a folder, such as '.'")
    return Path(path)


def _probe(options: argparse.Namespace) -> int:
    from playvirtual.runs.folder import RunFolder
    from playvirtual.study.probes.probe import probe

    RunFolder.open(options.path).trusted_config(trust_env=options.trust_env)
    transitions, seed = coerce("transitions", int, options.transitions), optional_int("seed", options.seed)
    show(probe(options.path, options.what, transitions=transitions, seed=seed, device=options.device))
    return 0


def _report(options: argparse.Namespace) -> int:
    from playvirtual.study.report.report import report

    written = report([_folder("runs", path) for path in options.runs], _folder("out", options.out), title=options.title)
    show(f"{written.summary}\nreport: {written.page}")
    if written.unusable:
        first, *others = written.unusable
        more = f" ({len(others)} more on the page)" if others else ""
        say(f"{shown(first.path)} cannot be used: {first.reason}{more}")
    return 0
