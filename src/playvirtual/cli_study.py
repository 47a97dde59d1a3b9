"""The command line of studies: `sweep`, `probe`, `report`, `list experiments`. Commands and flags, no logic."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playvirtual.config import PRESETS, coerce
from playvirtual.errors import InputError, unknown, writing
from playvirtual.flags import add_fields, given_fields
from playvirtual.parsing import first_look

ENGINES = {"local": ("workers", "per_gpu", "mps"), "ray": ("address", "cpus_per_run", "gpus_per_run")}  # their options
MPS = ("auto", "on", "off")
DEFAULT_TASK = "atari/pong"  # whose flags `sweep --help` shows when nothing says better
SWEEP_HELP = """\
Run every setting of a table of the paper, or of a grid of your own, on a suite of tasks with several seeds.

The same command does the rest of the work each time: finished runs are skipped, interrupted ones go on, failed
ones are tried again. The flags of `playvirtual train` that set up a run hold for every run of the sweep, but where
its row or method sets the same. Defaults shown for them are those of {task}; other tasks have others."""
SWEEP_EXAMPLES = """\
examples:
  playvirtual sweep toy --seeds 2 --out runs/toy                     a first look, minutes on a laptop
  playvirtual sweep minatar --seeds 5 --out runs/minatar             RL, SPR and PlayVirtual on MinAtar
  playvirtual sweep ablation-k --suite atari/pong --seeds 5          one table of the paper, one game
  playvirtual sweep atari100k --seeds 5 --per-gpu 4 --dry-run        what it would do, and how long
  playvirtual sweep my-grid.toml --suite minatar --seeds 3           rows of your own: [[row]] label, method, options
  playvirtual sweep dmc100k --engine ray --address auto --gpus-per-run 0.25
then: playvirtual report runs/toy --out report"""


def add_sweep(commands: Any, words: Sequence[str]) -> None:
    """Adds `playvirtual sweep`; the flags of the runs are those of its first task."""
    config = _first_config(words)
    parser = commands.add_parser(
        "sweep",
        help="run a table of the paper, or a grid of your own",
        description=SWEEP_HELP.format(task=config.task),
        epilog=SWEEP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _sweep_arguments(parser)
    add_fields(parser, config, without=("task", "method", "preset", "seed"))
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
    parser.add_argument(
        "--preset", default="paper", metavar="NAME", help=f"one of {', '.join(PRESETS)} (default: paper)"
    )
    parser.add_argument("--out", default="runs", metavar="DIR", help="where the run folders go (default: runs)")
    parser.add_argument("--retries", default="1", metavar="N", help="further attempts of a failed run (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="print the grid and an estimate of time, run nothing")
    engine = parser.add_argument_group("where the runs go")
    engine.add_argument("--engine", default="local", metavar="|".join(ENGINES), help="default: local, this machine")
    engine.add_argument("--workers", metavar="N", help="local: runs at a time (default: the cores, or GPUs × per-gpu)")
    engine.add_argument("--per-gpu", metavar="N", help="local: runs that share a GPU (default: 1)")
    mps = "local: NVIDIA's MPS where runs share a GPU; auto (default): if it is installed"
    engine.add_argument("--mps", metavar="|".join(MPS), help=mps)
    engine.add_argument("--address", metavar="HOST:PORT", help="ray: the cluster (default: RAY_ADDRESS, or auto)")
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
        epilog="example: playvirtual probe runs/dmc-cheetah-run/spr/seed-1 dynamics",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder")
    parser.add_argument("what", metavar="dynamics|complexity")
    parser.add_argument("--transitions", default="1000", metavar="N", help="dynamics: how many (default: 1000)")
    parser.add_argument("--seed", metavar="N", help="dynamics: seed of the episodes (default: the run's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.set_defaults(run=_probe)


def add_report(commands: Any) -> None:
    """Adds `playvirtual report`."""
    parser = commands.add_parser(
        "report",
        help="one page with tables beside the paper's, statistics and plots",
        description="Read run folders and write index.html (self-contained), plots as PNG and SVG, and tables as CSV, "
        "Markdown and LaTeX. Unfinished and unreadable runs are named, the rest is reported.",
        epilog="example: playvirtual report runs/minatar --out report",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--out", default="report", metavar="DIR", help="where the report goes (default: report)")
    parser.add_argument("--title", default="Study report", metavar="TEXT", help="the page's title")
    parser.set_defaults(run=_report)


def experiments_text() -> str:
    """What `playvirtual list experiments` prints."""
    from playvirtual.study.experiments import EXPERIMENTS, SUITE_NAMES

    width = max(map(len, EXPERIMENTS))
    lines = []
    for e in EXPERIMENTS.values():
        lines.append(f"{e.name:<{width}}  {e.title} ({e.source}): {_rows_text(e)}")
        if e.needs:
            lines.append(f"{'':<{width}}  needs {e.needs}")
    return "\n".join([*lines, "", f"suites: {', '.join(SUITE_NAMES)}, or any tasks separated by commas"])


def _rows_text(experiment: Any) -> str:
    """As in "9 settings on atari100k, dmc100k", or suite by suite where they have not the same; each is run once."""
    from playvirtual.study.experiments import suite
    from playvirtual.study.grids import jobs

    counts: dict[int, list[str]] = {}
    for name in experiment.suites:
        counts.setdefault(len(jobs(experiment, suite(name)[:1], 1, Path("runs"))), []).append(name)
    return "; ".join(f"{count} settings on {', '.join(names)}" for count, names in counts.items())


def _first_config(words: Sequence[str]) -> Any:
    """The configuration whose fields and defaults `sweep` shows: that of its first task, as far as words tell."""
    from playvirtual.presets import base
    from playvirtual.study.experiments import suite
    from playvirtual.study.grids import load

    if words[:1] != ["sweep"]:
        return base(DEFAULT_TASK)
    options, _ = first_look(words[1:], _sweep_arguments)
    try:
        suites = [options.suite] if options.suite else load(options.experiment or "").suites
        return base(suite(suites[0] if suites else DEFAULT_TASK)[0].task)
    except InputError:  # said again, and better, when the sweep is planned
        return base(DEFAULT_TASK)


def _sweep(options: argparse.Namespace, words: Sequence[str]) -> int:
    from playvirtual.study import grids
    from playvirtual.study.sweep import sweep
    from playvirtual.study.sweep_display import display, outcome
    from playvirtual.study.sweep_plan import plan

    _check_engine(options)
    retries = coerce("retries", int, options.retries)
    if retries < 0:
        raise InputError(f"retries: {retries} is not allowed; allowed: 0 or more")
    whole = grids.load(options.experiment)
    grids.check_flags(whole, given_fields(options))
    grid = grids.select(whole, options.rows)
    jobs = grids.jobs(
        grid,
        grids.chosen_tasks(grid, options.suite),
        coerce("seeds", int, options.seeds),
        Path(options.out),
        preset=options.preset,
        options=given_fields(options),
    )
    if options.dry_run:
        print(plan(jobs, None if options.engine == "ray" else _local(options).workers))
        return 0
    engine = _engine(options)
    with writing("out", Path(options.out)):
        Path(options.out).mkdir(parents=True, exist_ok=True)
    result = sweep(jobs, engine, display(), retries)
    if text := outcome(result, shlex.join(["playvirtual", *words])):
        print(text, file=sys.stderr)
    else:
        print(f"next: {shlex.join(['playvirtual', 'report', options.out])}")
    return 128 + result.stopped_by if result.stopped_by else int(bool(result.failed))


def _check_engine(options: argparse.Namespace) -> None:
    """Refuses options that only another engine would heed."""
    if options.engine not in ENGINES:
        raise unknown("engine", options.engine, ENGINES)
    allowed = ", ".join(f"--{name.replace('_', '-')}" for name in ENGINES[options.engine])
    for engine, names in ENGINES.items():
        for name in names if engine != options.engine else ():
            if (value := getattr(options, name)) is not None:
                raise InputError(
                    f"{name}: {value!r} is not allowed with --engine {options.engine}; allowed: {allowed}, or --engine "
                    f"{engine}"
                )
    device = given_fields(options).get("device", "auto")
    if options.engine == "ray" and device.startswith("cuda:"):
        raise InputError(
            f"device: {device!r} is not allowed with --engine ray, which deals out the cards; allowed: auto, cpu, cuda"
        )


def _local(options: argparse.Namespace) -> Any:
    from playvirtual.study.engines.local import LocalEngine

    workers = None if options.workers is None else coerce("workers", int, options.workers)
    device = given_fields(options).get("device", "auto")
    per_gpu = 1 if options.per_gpu is None else coerce("per_gpu", int, options.per_gpu)
    return LocalEngine(workers, per_gpu, device=device, mps=MPS[0] if options.mps is None else options.mps)


def _engine(options: argparse.Namespace) -> Any:
    if options.engine == "local":
        from playvirtual.training.devices import resolve

        resolve(given_fields(options).get("device", "auto"))  # what is not there fails once, and not in every run
        return _local(options)
    from playvirtual.study.engines.ray import RayEngine

    share = None if options.gpus_per_run is None else coerce("gpus_per_run", float, options.gpus_per_run)
    cpus = 1.0 if options.cpus_per_run is None else coerce("cpus_per_run", float, options.cpus_per_run)
    return RayEngine(options.address, cpus, share, device=given_fields(options).get("device", "auto"))


def _probe(options: argparse.Namespace) -> int:
    from playvirtual.study.probes import probe

    transitions = coerce("transitions", int, options.transitions)
    seed = None if options.seed is None else coerce("seed", int, options.seed)
    print(probe(options.path, options.what, transitions=transitions, seed=seed, device=options.device))
    return 0


def _report(options: argparse.Namespace) -> int:
    from playvirtual.study.report import report

    written = report([Path(path) for path in options.runs], Path(options.out), title=options.title)
    print(written.summary)
    print(f"report: {written.page}")
    return 0
