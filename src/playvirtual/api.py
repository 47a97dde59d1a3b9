"""The Python entry points: train, configure, resume, evaluate, video, load, export, benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from playvirtual import files
from playvirtual.agents.agent import Agent
from playvirtual.bench import measure
from playvirtual.calls import as_function, as_path, explained, keywords
from playvirtual.config import sources
from playvirtual.config.build import build
from playvirtual.config.schema import Config, with_values
from playvirtual.envs import factories, to_frame_of
from playvirtual.envs.arguments import as_texts
from playvirtual.envs.factories import Factory
from playvirtual.errors import InputError, shown, writing
from playvirtual.messages import log_to_stderr_by_default
from playvirtual.options import LARGEST_INT, UnknownOption, coerce
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import (
    POLICY_FILES,
    load_agent,
    policy_folder,
    read_native_action_space,
    read_observed_parts,
    read_step,
)
from playvirtual.runs.folder import RunFolder, default_path
from playvirtual.runs.loggers import parse
from playvirtual.runs.portable import portable_policy
from playvirtual.runs.trained_agent import TrainedAgent
from playvirtual.training.display.progress import display
from playvirtual.training.display.video import can_write_mp4, film
from playvirtual.training.evaluation import Policy, Progress, Watcher, evaluation_policy
from playvirtual.training.evaluation import evaluate as evaluate_policy
from playvirtual.training.policy import AsyncPolicy
from playvirtual.training.runner import Run, run

MOST_FILMED = 25  # episodes side by side
RunOrPath = Run | str | Path  # what `train` returned, or the folder that it wrote
Start = str | Path | Mapping[str, Any] | Config  # a task, or a configuration: itself, as a mapping or a TOML file


@explained
def train(
    task: Start | None = None,
    *,
    env: Factory | None = None,
    config: Start | None = None,
    like: RunOrPath | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    log: str = "none",
    quiet: bool = False,
    trust_env: bool = False,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> Run:
    """Trains an agent and scores it. `options` are method, preset, and fields of the configuration: seed, steps, K, …

    In place of a task, or as `config` beside it, stands a `Config`, a mapping of options or the path of a TOML file;
    `like` is a run whose configuration is the starting point. What is named later wins: `like`, `config`, the task,
    single options. `trust_env` allows to import the module that a file's task names (gym/module:Name-v0).

    In place of a task, `env` is a function or class that makes a `gymnasium.Env`, called with the option `env_args`. If
    it can be imported, the run's task is env/module:name, which the command line can play as well.

    With `resume` a run that was stopped resumes where it was, and one that was never started starts. `log` names
    loggers beside the run folder: "tensorboard", "wandb" or both with a comma. `callbacks` are called after steps,
    evaluations and checkpoints (see `Callback`); they belong to this call, not to the configuration.
    """
    folder = None if run_dir is None else as_path("run_dir", run_dir)
    if env is not None:
        if _is_source(task):
            config, task = task, None
        task = _task_of(task, env, folder if resume else None)
    with _naming_arguments(train):
        chosen = _configure(task, config, like, options, trust_env=trust_env)
    path = folder or default_path(chosen)
    return _run(chosen, path, resume=resume, log=log, quiet=quiet, callbacks=callbacks)


def _task_of(task: Any, env: Factory, resumed: Path | None) -> str:
    """The task that `env` makes: the one that is given, or that the resumed run has, or one named after `env`."""
    if task is None and resumed is not None and files.is_file(resumed / "config.json", "run_dir"):
        recorded = str(RunFolder(resumed).record().get("task"))
        task = recorded if factories.is_handed_over(recorded) else None
    if task is None:
        return factories.task_of(env)
    factories.hand_over(task, env)
    return str(task)


@explained
def configure(
    task: Start | None = None,
    *,
    config: Start | None = None,
    like: RunOrPath | None = None,
    trust_env: bool = False,
    **options: Any,
) -> Config:
    """The configuration that `train` with the same arguments uses."""
    for name in options:
        if name in keywords(train):
            raise InputError(f"{name}: it is no part of a configuration; allowed: in pv.train")
    with _naming_arguments(configure):
        return _configure(task, config, like, options, trust_env=trust_env)


@contextmanager
def _naming_arguments(function: Callable[..., Any]) -> Iterator[None]:
    """Lets the error for an option that is not known suggest the function's own arguments too."""
    try:
        yield
    except UnknownOption as error:
        raise UnknownOption(error.name, {*error.known, *keywords(function)}) from None


def _configure(
    task: Start | None, config: Start | None, like: RunOrPath | None, options: Mapping[str, Any], *, trust_env: bool
) -> Config:
    found = []
    if like is not None:
        folder = open_run(like, "like")
        foreign = not isinstance(like, Run)
        found.append(sources.from_config(folder.config(), f"like: {str(folder.path)!r}", foreign=foreign))
    if config is not None:
        found.append(_source(config))
    if task is not None:
        found.append(_source(task) if _is_source(task) else sources.Source({"task": task}))
    return sources.configuration([*found, sources.Source(options)], trust_env=trust_env)


def _is_source(start: Any) -> bool:
    """Whether it is a configuration or the path of one, and not the name of a task."""
    return isinstance(start, Config | Mapping | Path) or (isinstance(start, str) and start.endswith(".toml"))


def _source(start: Any) -> sources.Source:
    if isinstance(start, Config):
        return sources.from_config(start)
    if isinstance(start, Mapping):
        return sources.from_mapping(start)
    if isinstance(start, str | Path):
        return sources.from_toml(start)
    raise InputError(f"config: {shown(start)} is not allowed; allowed: a Config, a mapping, or the path of a TOML file")


@explained
def resume(
    path: RunOrPath,
    *,
    env: Factory | None = None,
    log: str = "none",
    quiet: bool = False,
    trust_env: bool = False,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> Run:
    """Resumes the run in that folder; `options`, if any, must be those it was started with.

    What may differ is `device`, `stop_at_score`, and `steps`: with more of them a run, finished or not, is extended.
    `env` makes the environments of a run that was trained with one. `trust_env` allows to import the modules that the
    folder names (gym/module:Name-v0, env/module:name, `imports`).
    """
    folder = open_run(path)
    if "env_args" in options:
        options["env_args"] = as_texts(options["env_args"])
    with _naming_arguments(resume):
        config = with_values(_trusted_config(path, folder, env, trust_env=trust_env), options)
    return _run(config, folder.path, resume=True, log=log, quiet=quiet, callbacks=callbacks)


def _run(config: Config, path: Path, *, resume: bool, log: str, quiet: bool, callbacks: Sequence[object]) -> Run:
    log_to_stderr_by_default()
    progress = display(f"{config.task} {config.method}", config.steps, quiet=quiet)
    return run(config, path, progress, resume=resume, log=parse(log), announce=not quiet, callbacks=callbacks)


@explained
def load(path: RunOrPath, device: str | torch.device = "auto", *, num_envs: int | None = None) -> TrainedAgent:
    """The agent of a run's newest checkpoint or of an export, ready to act without replay or environment.

    It takes the environment's raw observations, of `num_envs` environments side by side where that is given. From then
    on this process computes in the run's precision and, on the CPU, with its number of threads.
    """
    num_envs = None if num_envs is None else int(coerce("num_envs", int, num_envs))
    if num_envs is not None and not 1 <= num_envs <= LARGEST_INT:
        raise InputError(f"num_envs: {num_envs} is not allowed; allowed: 1 or more, or None for one environment")
    folder = open_run(path)
    config, source = folder.config(), policy_folder(folder)
    agent = load_agent(config, source, device)
    space, parts = read_native_action_space(source), read_observed_parts(source)
    to_frame = parts.to_frame if parts is not None else to_frame_of(config.task)
    return TrainedAgent(agent, config.environment, to_frame, space, num_envs)


@explained
def export(path: RunOrPath, out: str | Path, *, format: str = "safetensors") -> Path:
    """Writes a small folder that `load` takes: the newest checkpoint's weights for acting, and the configuration.

    With `format` "torchscript" or "onnx" the acting network is written beside them as a file of that format, which
    needs no part of this package.
    """
    return write_export(out, export_files(open_run(path), out, format))


def export_files(folder: RunFolder, out: str | Path, format: str = "safetensors") -> list[tuple[str, bytes]]:
    """What an export to the new folder `out` consists of; raises where `out` exists or the agent cannot be loaded."""
    if files.kind(target := as_path("out", out), "out") is not None or target.is_symlink():
        raise InputError(f"out: {str(out)!r} exists already; allowed: a new folder")
    # What cannot be loaded is not worth writing.
    config, source = folder.config(), policy_folder(folder)
    agent = load_agent(config, source, "cpu")
    contents = [("config.json", files.read(folder.path / "config.json", "run", files.RECORD_BYTES))]
    contents += [(name, checkpoint.read(source, name)) for name in POLICY_FILES]
    if format == "safetensors":
        return contents
    parts = read_observed_parts(source)
    return [*contents, portable_policy(agent, format, parts, config.environment.frame_stack)]


def write_export(out: str | Path, contents: Iterable[tuple[str, bytes]]) -> Path:
    """Makes the new folder `out` with these files and their checksums."""
    with writing("out", target := as_path("out", out)):
        checkpoint.write_new_folder(target, contents)
    return target


@explained
def evaluate(
    path: RunOrPath,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    watcher: Watcher | None = None,
    progress: Progress | None = None,
    env: Factory | None = None,
    trust_env: bool = False,
) -> list[float]:
    """The returns of whole episodes played by a run's newest checkpoint under its evaluation protocol.

    With neither `episodes` nor `seed` they are those of the run's own evaluation of that checkpoint. `progress` is
    called with the episodes that have ended and the steps so far. `env` and `trust_env` are as in `resume`.
    """
    return evaluation(
        path,
        episodes=episodes,
        seed=seed,
        device=device,
        watcher=watcher,
        progress=progress,
        env=env,
        trust_env=trust_env,
    ).returns


class Evaluation(NamedTuple):
    """What an evaluation found; a run that is still training may have a newer checkpoint by its end."""

    step: int  # of the checkpoint that played
    returns: list[float]


def evaluation(
    path: RunOrPath,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    watcher: Watcher | None = None,
    progress: Progress | None = None,
    env: Factory | None = None,
    trust_env: bool = False,
) -> Evaluation:
    """`evaluate` with the same arguments, and the step of the checkpoint that plays."""
    played = _player(path, env, episodes=episodes, seed=seed, device=device, trust_env=trust_env)
    with torch.no_grad():
        returns = evaluate_policy(
            played.policy,
            played.config,
            episodes=played.config.evaluation.eval_episodes,
            seed=played.config.seed,
            step=played.step,
            watcher=as_function("watcher", watcher),
            progress=as_function("progress", progress),
        )
    return Evaluation(played.step, returns)


@explained
def video(
    path: RunOrPath,
    out: str | Path | None = None,
    *,
    episodes: int = 4,
    frames: int = 1_000,
    seed: int | None = None,
    device: str | torch.device = "auto",
    env: Factory | None = None,
    trust_env: bool = False,
) -> tuple[Path, list[float]]:
    """Films episodes of a run's newest checkpoint side by side; returns the file and the episodes' returns.

    `out` is the film's file, which ends in .mp4 or .gif, or gets that ending (MP4 with the extra `video` installed,
    else GIF); by default it is one in the run's folder `videos`. At most `frames` frames of each episode are shown.
    `env` and `trust_env` are as in `resume`.
    """
    episodes, frames = int(coerce("episodes", int, episodes)), int(coerce("frames", int, frames))
    for name, value, most in (("episodes", episodes, MOST_FILMED), ("frames", frames, LARGEST_INT)):
        if not 1 <= value <= most:
            raise InputError(f"{name}: {value} is not allowed; allowed: 1 to {most}")
    target = as_path("out", out) if out else None
    if target is not None and target.suffix == ".mp4" and not can_write_mp4():
        raise InputError(f"out: {str(target)!r} needs the extra `video`; allowed without it: a name that ends in .gif")
    played = _player(path, env, episodes=episodes, seed=seed, device=device, trust_env=trust_env)
    given = {"episodes": episodes, "seed": played.config.seed, "step": played.step, "limit": frames}
    with torch.no_grad():
        recorder, returns = film(played.agent, played.policy, played.config, **given)
    target = target or played.videos / f"episodes-{episodes}-seed-{played.config.seed}"
    with writing("out" if out else "video", target):
        return recorder.save(target), returns


class _Player(NamedTuple):
    """A trained agent with what its evaluation needs."""

    videos: Path
    config: Config
    agent: Agent
    policy: Policy
    step: int


def _player(
    path: RunOrPath,
    env: Factory | None,
    *,
    episodes: int | None,
    seed: int | None,
    device: str | torch.device,
    trust_env: bool,
) -> _Player:
    """The agent of a run or an export, with its configuration for so many episodes of that seed."""
    folder = open_run(path)
    if episodes is not None and not 1 <= coerce("episodes", int, episodes) <= LARGEST_INT:
        raise InputError(f"episodes: {episodes} is not allowed; allowed: 1 or more")
    given = {"eval_episodes": episodes, "seed": seed}
    config = _trusted_config(path, folder, env, trust_env=trust_env)
    config = with_values(config, {k: v for k, v in given.items() if v is not None})
    source = policy_folder(folder)
    agent = load_agent(config, source, device)
    step = read_step(source)
    policy = evaluation_policy(AsyncPolicy(agent, cudagraph=config.compile != "off"), config, step)
    return _Player(folder.videos, config, agent, policy, step)


def _trusted_config(run: RunOrPath, folder: RunFolder, env: Factory | None, *, trust_env: bool) -> Config:
    """The folder's configuration, if it may be played: a run that this process has made is trusted.

    With `env` nothing that the folder names as its environment is imported.
    """
    if env is not None:
        factories.hand_over(str(folder.record().get("task")), env)
    return folder.trusted_config(trust_env=trust_env or isinstance(run, Run), makes_env=env is None)


def open_run(run: RunOrPath, field: str = "run") -> RunFolder:
    """The folder of a run or an export; `field` names the argument in the error."""
    log_to_stderr_by_default()
    if not isinstance(run, Run | str | Path):
        raise InputError(f"{field}: {shown(run)} is not allowed; allowed: what `pv.train` returned, or a run folder")
    return RunFolder.open(run.path if isinstance(run, Run) else run, field)


@explained
def benchmark(
    task: str,
    *,
    method: str = "playvirtual",
    preset: str = "paper",
    repeats: int = measure.REPEATS,
    **options: Any,
) -> measure.Measurement:
    """Times what `train` with the same arguments would do on this machine."""
    log_to_stderr_by_default()
    with _naming_arguments(benchmark):
        config = build(task, method=method, preset=preset, **options)
    return measure.bench(config, repeats=coerce("repeats", int, repeats))
