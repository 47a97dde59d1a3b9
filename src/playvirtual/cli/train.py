"""`playvirtual train`, `evaluate` and `bench`: the commands about one run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from playvirtual import files
from playvirtual.cli.flags import (
    DEFAULT_TASK,
    add_env_arg,
    add_fields,
    add_import,
    add_size,
    add_trust_env,
    first_look,
    given_fields,
    given_for_fit,
    given_own_env,
    json_file,
    no_task,
    optional_int,
)
from playvirtual.config.build import base, defaults, method_names
from playvirtual.config.registry import agent_of
from playvirtual.config.schema import PRESETS, Config
from playvirtual.config.sources import (
    NAMES,
    Source,
    check_trusted_sources,
    for_fit,
    from_config,
    from_toml,
    names,
    to_toml,
)
from playvirtual.envs import check_name, import_modules
from playvirtual.errors import InputError, writing
from playvirtual.files import Unreadable
from playvirtual.messages import show
from playvirtual.options import coerce

TRAIN_EXAMPLES = """\
examples:
  playvirtual train toy/catch                                      minutes on a laptop's CPU
  playvirtual train atari/pong --method spr --seed 3               another method, another seed
  playvirtual train dmc/cheetah-run --K 3 --log tensorboard        an option of the method, a logger
  playvirtual train atari/pong --print-config > run.toml           every option as a file, nothing is started
  playvirtual train --config run.toml --seed 2                     from the file; flags of the command line win
  playvirtual train --like runs/atari-pong/spr/seed-1 --seed 2     with the options of another run
  playvirtual train atari/pong --resume                            resume after a stop: the same command + --resume
  playvirtual train --resume runs/atari-pong/playvirtual/seed-1    resume by the run folder alone
  playvirtual train --resume RUN --steps 200000                    a longer run out of one that may be finished
then: playvirtual evaluate RUN --video"""
EVALUATE_EXAMPLES = """\
examples:
  playvirtual evaluate runs/toy-catch/playvirtual/seed-1                         the run's own evaluation again
  playvirtual evaluate runs/toy-catch/playvirtual/seed-1 --episodes 100 --seed 7 other episodes
  playvirtual evaluate pong-agent --video                                        an export, with a video
  playvirtual evaluate pong-agent --json pong.json                               with every episode's return in a file
  playvirtual evaluate playvirtual/minatar-breakout                              an agent that comes with the package"""
BENCH_EXAMPLES = """\
example:
  playvirtual bench atari/pong --precision bf16 --json pong.json
Compare the update's median; quartiles far from it mean that the machine was not idle."""


def add_train(commands: Any, words: Sequence[str]) -> None:
    """Adds `playvirtual train` with the flags of the task that `words` name."""
    named, config = _task_shown("train", words, _train_arguments)
    parser = commands.add_parser(
        "train",
        usage="playvirtual train TASK [--method NAME] [--seed N] [--resume] [options]\n"
        "       playvirtual train --config FILE [options]\n"
        "       playvirtual train --resume RUN [--steps N]",
        help="train an agent and score it",
        description=f"Train an agent and score it.\n{_defaults_shown('train', named, config)}",
        epilog=TRAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _train_arguments(parser)
    add_fields(parser, config, whole_help=named)
    parser.set_defaults(run=_train, shown=config, named=named)


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", nargs="?", help="e.g. atari/pong, minatar/breakout, toy/catch; see `playvirtual list tasks`"
    )
    parser.add_argument("--method", metavar="NAME", help=f"one of {', '.join(method_names())} (default: playvirtual)")
    parser.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)} (default: paper)")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file with any options by the names of these flags (task, method too); flags given beside it win",
    )
    parser.add_argument(
        "--like",
        metavar="RUN",
        help="a run folder or an export whose options are the starting point; --config and flags win over them",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every option that the run would have as TOML; start nothing"
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", help="a new or an empty folder for the run (default: runs/TASK/METHOD/seed-N)"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="RUN",
        help="resume from the last checkpoint, bit-exact on the CPU: add it to the command that started the run (a run "
        "that was never started is started), or give the run folder instead of a task; changed settings are refused, "
        "but for more --steps, by which a run is extended, and --stop-at-score",
    )
    parser.add_argument(
        "--log",
        default="none",
        metavar="NAMES",
        help="none, tensorboard, wandb, or both with a comma: loggers beside the run folder, which is always written",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress display and no estimate of the time")
    add_import(parser)
    add_env_arg(parser)
    add_size(parser)
    add_trust_env(parser)


def add_evaluate(commands: Any) -> None:
    """Adds `playvirtual evaluate`."""
    parser = commands.add_parser(
        "evaluate",
        help="score a trained agent again",
        description="Play whole episodes with a run's latest valid checkpoint under its evaluation protocol.",
        epilog=EVALUATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder, an export, or the name of a built-in agent")
    parser.add_argument("--episodes", metavar="N", help="default: as many as the run's own evaluation")
    parser.add_argument("--seed", metavar="N", help="seed of the episodes (default: the run's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--video",
        action="store_true",
        help="write a video of the first env to RUN/videos/, with reward, return, and Q values or action: "
        "MP4 with the extra `video` installed, else GIF; `playvirtual video` films several episodes side by side",
    )
    parser.add_argument("--json", metavar="FILE", help="write every return there too, as a line of evaluations.jsonl")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    add_import(parser)
    add_trust_env(parser)
    parser.set_defaults(run=_evaluate)


def add_bench(commands: Any, words: Sequence[str]) -> None:
    """Adds `playvirtual bench` with the flags of the task that `words` name."""
    named, config = _task_shown("bench", words, _bench_arguments)
    parser = commands.add_parser(
        "bench",
        usage="playvirtual bench TASK [--method NAME] [--repeats N] [--json FILE] [options]",
        help="time a run's updates and steps on this machine, and show where the time goes",
        description="Time what `playvirtual train` with the same flags would do: build its parts, play 300\nrandom "
        "steps, compile and capture, then measure updates, whole steps, memory and kernels.\nNo run folder is "
        f"written.\n{_defaults_shown('bench', named, config)}",
        epilog=BENCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _bench_arguments(parser)
    add_fields(parser, config, whole_help=named)
    parser.set_defaults(run=_bench, shown=config, named=named)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="?", help="e.g. atari/pong, toy/catch; see `playvirtual list tasks`")
    parser.add_argument("--method", default="playvirtual", metavar="NAME", help=f"one of {', '.join(method_names())}")
    parser.add_argument("--preset", default="paper", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--repeats", default="15", metavar="N", help="timed blocks of updates (default: 15)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")
    add_import(parser)
    add_env_arg(parser)
    add_size(parser)


def _defaults_shown(command: str, named: bool, config: Config) -> str:
    """Which options the help of a command shows, and whose defaults."""
    if named:
        return f"Defaults shown are those of {config.task} with {config.method}; other tasks and methods have others."
    return (
        f"`playvirtual {command} TASK --help` adds the options of environment, objective, agent,\n"
        f"replay and evaluation, with that task's defaults; those shown here are of {config.task}."
    )


def _task_shown(command: str, words: Sequence[str], add_arguments: Callable[[Any], None]) -> tuple[bool, Config]:
    """Whether `command` is given a task, and the configuration whose defaults its help shows."""
    if not words or words[0] != command:
        return False, base(DEFAULT_TASK)
    options, stray = first_look(words[1:], add_arguments)
    try:
        sources = _sources(options)
        found, given = names(sources), for_fit(sources)
        run = None if "task" in found else _config_of_run(options)
        if run is not None:  # the kind of its agent tells the kind of its actions: no environment is made here
            fitted = {"size": run.size, "fitted_to": run.fitted_to}
            return True, defaults(run.task, run.method, run.preset, fitted, agent_of(run.agent).name)
        import_modules(given.get("imports", ()))
        return "task" in found, defaults(found.get("task", DEFAULT_TASK), found["method"], found["preset"], given)
    except InputError as error:
        raise stray or _run_as_task(command, options.task) or error from None


def _run_as_task(command: str, task: str | None) -> InputError | None:
    """The error for a run folder where a task is wanted; None if there is no such folder, or a task of that name."""
    try:
        if not task or not files.is_file(Path(task, "config.json"), "task"):
            return None
        check_name(task)
    except Unreadable:
        return None
    except InputError:
        of_run = f"`playvirtual train --resume {task}`, or --like {task} for another run with its options"
        allowed = of_run if command == "train" else "what `playvirtual list tasks` shows"
        return InputError(f"task: {task!r} is a run folder and not a task; allowed: {allowed}")
    return None


def _sources(options: argparse.Namespace) -> list[Source]:
    """What --like, --config and the command's own words say about task, method, preset and fitted settings."""
    like, config = getattr(options, "like", None), getattr(options, "config", None)
    found = []
    if like:
        from playvirtual.runs.folder import RunFolder  # PyTorch comes with it: help and slips do not wait for that

        found.append(from_config(RunFolder.open(like, "like").config(), f"like: {like!r}", foreign=True))
    found += [from_toml(config)] if config else []
    named = {name: getattr(options, name) for name in NAMES if getattr(options, name) is not None}
    found.append(Source({**named, **given_for_fit(options)}))
    check_trusted_sources(found, trust_env=getattr(options, "trust_env", False))
    return found


def _config_of_run(options: argparse.Namespace) -> Config | None:
    """The configuration of the run that is to be resumed; None if --resume names none."""
    run = getattr(options, "resume", None)
    if not isinstance(run, str):
        return None
    from playvirtual.envs import task_names
    from playvirtual.runs.folder import RunFolder

    try:
        return RunFolder.open(run).trusted_config(trust_env=options.trust_env)
    except InputError as error:
        if (
            isinstance(error, Unreadable)
            or files.kind(Path(run), "run")
            or not (run.startswith(("gym/", "env/")) or run in task_names())
        ):
            raise
        raise InputError(
            f"resume: {run!r} is a task and not a run folder; allowed: `playvirtual train {run} --resume`, or "
            "`playvirtual train --resume RUN`"
        ) from error


def _train(options: argparse.Namespace) -> int:
    from playvirtual.api import configure, resume, train
    from playvirtual.config.schema import with_values
    from playvirtual.envs import executed_modules
    from playvirtual.study.scores import run_summary

    choices = {name: getattr(options, name) for name in ("method", "preset") if getattr(options, name) is not None}
    given = {**choices, **given_fields(options), **given_own_env(options)}
    start = {"config": options.config, "like": options.like, "trust_env": options.trust_env}
    common = {"log": options.log, "quiet": options.quiet}
    by_folder = isinstance(options.resume, str)
    if by_folder:
        if any(word is not None for word in (options.task, options.run_dir, options.config, options.like)):
            raise InputError(
                f"resume: {options.resume!r} is given beside a task or --run-dir, --config or --like; "
                "allowed: one of the two"
            )
    elif options.task is None and not (options.config or options.like):
        if not options.resume:
            raise no_task("train")
        raise InputError(
            "resume: neither a task nor a run folder is given; allowed: `playvirtual train TASK --resume` with the "
            "flags that started the run, or `playvirtual train --resume RUN`"
        )
    if options.print_config:
        stored = _config_of_run(options)
        show(to_toml(with_values(stored, given) if stored else configure(options.task, **start, **given)))
        return 0
    if by_folder:
        run = resume(options.resume, trust_env=options.trust_env, **common, **given)
    else:
        run = train(options.task, run_dir=options.run_dir, resume=bool(options.resume), **start, **common, **given)
    early = f"\nstopped early: {run.stopped}" if run.stopped else ""
    show(f"{run_summary(run.config, run.returns)}{early}\nrun folder: {run.path}")
    if not options.quiet:
        trusted = ["--trust-env"] if executed_modules(run.config.task, run.config.imports) else []
        show(f"next: {shlex.join(['playvirtual', 'evaluate', str(run.path), *trusted, '--video'])}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from playvirtual.api import evaluation, load
    from playvirtual.runs.folder import RunFolder
    from playvirtual.study.scores import run_summary
    from playvirtual.training.display.progress import showing_evaluation
    from playvirtual.training.display.video import Recorder
    from playvirtual.training.evaluation import evaluation_line

    folder, write = RunFolder.open(options.path), json_file(options.json, indent=None)
    config = folder.trusted_config(trust_env=options.trust_env)
    episodes, seed = optional_int("episodes", options.episodes), optional_int("seed", options.seed)
    recorder = Recorder(load(options.path, options.device)) if options.video else None
    total = config.evaluation.eval_episodes if episodes is None else episodes
    with showing_evaluation(f"{config.task} evaluation", total, quiet=options.quiet) as progress:
        step, returns = evaluation(
            options.path,
            episodes=episodes,
            seed=seed,
            device=options.device,
            watcher=recorder,
            progress=progress,
            trust_env=options.trust_env,
        )
    show(run_summary(config, returns))
    write(evaluation_line(config, step, returns))
    if recorder is not None:
        video = folder.videos / f"evaluation-seed-{config.seed if seed is None else seed}"
        with writing("video", video):
            show(f"video: {recorder.save(video)}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from playvirtual.api import benchmark
    from playvirtual.bench.table import table

    if options.task is None:
        raise no_task("bench")
    repeats, write = coerce("repeats", int, options.repeats), json_file(options.json)
    given = {"method": options.method, "preset": options.preset, **given_fields(options), **given_own_env(options)}
    measurement = benchmark(options.task, repeats=repeats, **given)
    show(table(measurement))
    write(asdict(measurement))
    return 0
